"""The colours of every picture in the course, as plain data.

Widgets and plots read them from here, so that the exponent is the same blue in a widget as in a
figure. The hues are those of Okabe and Ito, *Color Universal Design* (2008), chosen to stay apart
for readers with any of the common colour vision deficiencies; on a dark page the blue and the grey
are lightened, which keeps at least 3:1 to the background. Colour never carries a meaning alone:
what it marks is also labelled, or told apart by shape.

`ROLES` says what a colour stands for. Draw with `colour("exponent", dark=False)`, not with a hue.
"""

from __future__ import annotations

#: Hues on a light page, and the inks and surfaces that go with them.
LIGHT: dict[str, str] = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#6E6E6E",
    "ink": "#1B1B1F",
    "muted": "#5A5A62",
    "line": "#C9C9D1",
    "surface": "#FFFFFF",
    "raised": "#F4F5F8",
}

#: The same on a dark page.
DARK: dict[str, str] = {
    **LIGHT,
    "blue": "#3A94D6",
    "grey": "#9A9AA2",
    "ink": "#ECECF0",
    "muted": "#B3B3BC",
    "line": "#4A4A53",
    "surface": "#111111",
    "raised": "#1D1E22",
}

#: What the hues stand for.
ROLES: dict[str, str] = {
    # the fields of a code
    "sign": "purple",
    "exponent": "blue",
    "mantissa": "green",
    # where a number falls in a format
    "flushed": "grey",
    "subnormal": "orange",
    "normal": "sky",
    "infinite": "vermillion",
    # formats side by side
    "FP32": "ink",
    "TF32": "sky",
    "FP16": "vermillion",
    "BF16": "blue",
    "FP8_E4M3": "green",
    "FP8_E5M2": "purple",
    "FP6_E2M3": "orange",
    "FP6_E3M2": "orange",
    "FP4_E2M1": "grey",
    # the ring around what has the keyboard, and a verdict, always beside a word
    "focus": "blue",
    "good": "green",
    "bad": "vermillion",
}


def colour(name: str, dark: bool = False) -> str:
    """Return the colour of a role or hue as ``"#RRGGBB"``.

    Raises
    ------
    ValueError
        If ``name`` is neither.
    """
    theme = DARK if dark else LIGHT
    hue = ROLES.get(name, name)
    if hue not in theme:
        names = ", ".join([*ROLES, *theme])
        raise ValueError(f"name is {name!r}; allowed are {names}")
    return theme[hue]


def ink_on(fill: str) -> str:
    """Return the more readable ink, black or white, for text on ``fill`` (``"#RRGGBB"``)."""
    return max(("#000000", "#FFFFFF"), key=lambda ink: contrast(ink, fill))


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it.

    Text needs 4.5, large text and the edges of shapes 3.
    """
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
