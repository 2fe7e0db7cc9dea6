"""Colours that stay apart: for every reader, on either page."""

from itertools import combinations

import numpy as np
import pytest

from mptutor import palette
from mptutor.palette import DARK, LIGHT, ROLES, colour, contrast, ink_on

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}

#: What is told apart by colour in one picture.
TOGETHER = [
    ("sign", "exponent", "mantissa"),
    ("flushed", "subnormal", "normal", "infinite"),
    ("FP32", "TF32", "FP16", "BF16", "FP8_E4M3", "FP8_E5M2"),
]


def linear(colour):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("roles", TOGETHER)
def test_colours_that_stand_together_stay_apart(roles, vision, dark):
    seen = {role: lab(VISION[vision] @ linear(colour(role, dark))) for role in roles}
    for a, b in combinations(roles, 2):
        # A difference of 10 in CIELAB is plain to see; 2.3 is just noticeable.
        assert np.linalg.norm(seen[a] - seen[b]) > 10, (a, b)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_can_be_read(theme):
    for ink in ("ink", "muted"):
        for page in ("surface", "raised"):
            assert contrast(theme[ink], theme[page]) >= 4.5
    for hue in ("blue", "orange", "green", "vermillion", "purple", "sky", "grey"):
        assert contrast(ink_on(theme[hue]), theme[hue]) >= 4.5


def test_contrast_is_that_of_wcag():
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # the known near miss


def test_every_role_has_a_colour():
    assert all(colour(role, dark) in theme.values() for role in ROLES for dark, theme in THEMES)


THEMES = [(False, LIGHT), (True, DARK)]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"name is 'red'; allowed are sign, exponent"):
        palette.colour("red")
