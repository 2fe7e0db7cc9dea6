"""The FP8 scale explorer as a learner meets it: in lesson 13, by mouse and by keyboard.

What should appear is taken from the model, which is tested against casts.
"""

import math

import pytest

from mptutor.widgets import Fp8Explorer
from mptutor.widgets.fp8_explorer import HIGHEST, LOWEST
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    show_alone,
    walk,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson13]

LESSON = "13_beyond_16_bits.ipynb"
OUTLIER = "activations with outlier"


# -- what a learner does ---------------------------------------------------------------------------


class Explorer(Figure):
    name = "FP8 scale explorer"

    def __init__(self, page):
        super().__init__(page)
        self.slider = self.figure.get_by_role("slider", name="Scale, as a power of two")
        self.chart = self.figure.locator("svg.mpt-histogram")
        self.blocks = self.figure.get_by_role("list", name="Blocks of columns")
        self.model = Fp8Explorer(tensor=OUTLIER)

    def power(self) -> int:
        return int(self.slider.input_value())

    def agrees(self, **position):
        """Wait until the readout says what the model says in this position."""
        for name, value in position.items():
            setattr(self.model, name, value)
        self.says(self.model.describe())

    def empty_blocks(self) -> list[bool]:
        """Tell of every block whether it says that it has lost values to zero."""
        rows = self.blocks.get_by_role("listitem").all_inner_texts()
        return ["\n0 % zero" not in row for row in rows]


def choose_the_outlier(explorer):
    explorer.choose(OUTLIER)
    explorer.choose("the tensor")
    explorer.choose("FP8_E4M3")
    explorer.agrees(tensor=OUTLIER, granularity="tensor", fmt="FP8_E4M3", power=explorer.power())


def reach_the_goal_by_keyboard(explorer):
    explorer.slider.focus()
    explorer.press("Home")
    explorer.agrees(power=LOWEST)
    power = LOWEST
    while explorer.model.result.clipped == 0:
        explorer.press("ArrowRight")
        power += 1
        explorer.agrees(power=power)
    explorer.press("ArrowLeft")
    explorer.agrees(power=power - 1)
    assert all(explorer.empty_blocks())
    assert power - 1 == math.floor(math.log2(explorer.model.result.amax_scale))


def give_each_block_a_scale_by_keyboard(explorer):
    explorer.figure.get_by_role("radio", name="the tensor", exact=True).focus()
    explorer.press("ArrowRight")
    explorer.agrees(granularity="row")
    explorer.press("ArrowRight")
    explorer.agrees(granularity="block")
    explorer.says("1,024 scales", ".mpt-next")
    assert sum(explorer.empty_blocks()) == 1
    assert not explorer.slider.is_visible()
    explorer.press("ArrowLeft", "ArrowLeft")
    explorer.agrees(granularity="tensor")
    explorer.slider.focus()
    explorer.press("End")
    explorer.agrees(power=HIGHEST)


def let_the_amax_choose(explorer):
    for fmt in ("FP8_E5M2", "FP8_E4M3"):
        explorer.choose(fmt)
        explorer.click("set by amax")
        power = math.floor(math.log2(Fp8Explorer(tensor=OUTLIER, fmt=fmt).result.amax_scale))
        explorer.agrees(fmt=fmt, power=power)


def drag_the_histogram(explorer):
    explorer.chart.scroll_into_view_if_needed()
    box, before = explorer.chart.bounding_box(), explorer.power()
    mouse, y = explorer.page.mouse, box["y"] + 120
    mouse.move(box["x"] + box["width"] / 2, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 40, y, steps=6)
    mouse.up()
    assert explorer.power() > before + 15
    explorer.agrees(power=explorer.power())


def a_drag_does_nothing_where_scales_are_many(explorer):
    explorer.choose("each block of 32")
    explorer.agrees(granularity="block")
    before = explorer.chart.locator("g").nth(1).get_attribute("transform")
    box = explorer.chart.bounding_box()
    explorer.page.mouse.move(box["x"] + 100, box["y"] + 100)
    explorer.page.mouse.down()
    explorer.page.mouse.move(box["x"] + 300, box["y"] + 100, steps=4)
    explorer.page.mouse.up()
    assert explorer.chart.locator("g").nth(1).get_attribute("transform") == before
    explorer.agrees()


def look_at_every_tensor(explorer):
    for tensor in ("weights", "activations", "gradients", OUTLIER):
        explorer.choose(tensor)
        explorer.agrees(tensor=tensor)
    assert explorer.chart.get_by_text("outlier channel").is_visible()


def drag_the_slider(explorer):
    explorer.choose("the tensor")
    explorer.agrees(granularity="tensor")
    explorer.slider.scroll_into_view_if_needed()
    box = explorer.slider.bounding_box()
    share = (explorer.power() - LOWEST) / (HIGHEST - LOWEST)
    mouse, y = explorer.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 7 + share * (box["width"] - 14), y)
    mouse.down()
    mouse.move(box["x"] + 4, y, steps=6)
    mouse.up()
    explorer.agrees(power=LOWEST)


JOURNEY = (
    choose_the_outlier,
    reach_the_goal_by_keyboard,
    give_each_block_a_scale_by_keyboard,
    let_the_amax_choose,
    drag_the_histogram,
    a_drag_does_nothing_where_scales_are_many,
    look_at_every_tensor,
    drag_the_slider,
)


# -- in the lesson ---------------------------------------------------------------------------------


def test_lesson_13_in_jupyterlab(lab, copy_lesson, open_page):
    page = open_page(color_scheme="light")
    walk_in_jupyterlab(lab, copy_lesson(LESSON), page, Explorer, JOURNEY)


@THEMES
def test_lesson_13_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Explorer, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {"power": LOWEST},
    {"power": 12},
    {"power": HIGHEST, "tensor": OUTLIER},
    {"power": -12, "tensor": OUTLIER},
    {"granularity": "row", "tensor": OUTLIER, "fmt": "FP8_E5M2"},
    {"granularity": "block", "tensor": OUTLIER},
    {"granularity": "block", "tensor": "gradients"},
)


def widgets():
    return [Fp8Explorer(**position) for position in POSITIONS]


@THEMES
def test_the_journey_needs_no_kernel(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    show_alone(page, Fp8Explorer())
    explorer = Explorer(page)
    explorer.assert_theme(theme)
    walk(explorer, JOURNEY)
    assert not page.complaints


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, widgets())


@THEMES
def test_accessibility(open_page, theme):
    assert_all_accessible(open_page(color_scheme=theme, offline=True), widgets())
