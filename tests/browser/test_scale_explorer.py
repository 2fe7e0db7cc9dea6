"""The scale explorer as a learner meets it: in lesson 05, by mouse and by keyboard.

What should appear is taken from the model, which is tested against casts.
"""

import re

import pytest

from mptutor.widgets.scale_explorer import HIGHEST, LOWEST, ScaleExplorer
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson05]

LESSON = "05_loss_scaling.ipynb"


# -- what a learner does ---------------------------------------------------------------------------


class Explorer(Figure):
    name = "Scale explorer"

    def __init__(self, page):
        super().__init__(page)
        self.slider = self.figure.get_by_role("slider", name="Loss scale")
        self.chart = self.figure.locator("svg.mpt-histogram")
        self.model = ScaleExplorer()

    def choose(self, option: str):
        self.figure.get_by_role("radio", name=option).check()

    def layer(self, name: str):
        return self.figure.get_by_role("radio", name=re.compile(f"^{name}"))

    def power(self) -> int:
        return int(self.slider.input_value())

    def agrees(self, **position):
        """Wait until the readout says what the model says in this position."""
        for name, value in position.items():
            setattr(self.model, name, value)
        said = self.model.describe()
        self.says(said)

    def shows(self, text: str):
        self.figure.get_by_text(text).first.wait_for(timeout=5000)


def find_the_window_by_keyboard(explorer):
    explorer.slider.focus()
    explorer.press("Home")
    explorer.agrees(power=LOWEST)
    explorer.press(*["ArrowRight"] * (0 - LOWEST))
    explorer.agrees(power=0)
    largest = explorer.model.result.window.largest
    power = 0
    while 2.0**power < largest:
        explorer.press("ArrowRight")
        power += 1
    explorer.agrees(power=power)
    explorer.shows("GradScaler would take this step")
    explorer.press("ArrowRight")
    explorer.shows("GradScaler would skip this step")
    explorer.press("End")
    explorer.agrees(power=HIGHEST)


def change_the_format_by_keyboard(explorer):
    explorer.figure.get_by_role("radio", name="FP16", exact=True).focus()
    explorer.press("ArrowRight")
    explorer.agrees(fmt="BF16")
    explorer.press("ArrowLeft")
    explorer.agrees(fmt="FP16")


def drag_the_histogram(explorer):
    explorer.chart.scroll_into_view_if_needed()
    box = explorer.chart.bounding_box()
    mouse, y, before = explorer.page.mouse, box["y"] + 120, explorer.power()
    mouse.move(box["x"] + box["width"] - 40, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] / 2, y, steps=6)
    mouse.up()
    assert explorer.power() < before - 20
    explorer.agrees(power=explorer.power())


def choose_a_layer(explorer):
    explorer.layer("linear1").check()
    explorer.agrees(layer="linear1")
    explorer.layer("linear1").focus()
    explorer.press("ArrowUp")
    explorer.agrees(layer="linear2")
    explorer.layer("all layers").check()
    explorer.agrees(layer="all")


def choose_a_kind(explorer):
    explorer.choose("layer outputs")
    explorer.agrees(kind="outputs")
    explorer.figure.get_by_role("radio", name="weights", exact=True).check()
    explorer.agrees(kind="weights")
    explorer.choose("outputs and weights")
    explorer.agrees(kind="all")


def drag_the_slider(explorer):
    explorer.slider.scroll_into_view_if_needed()
    box = explorer.slider.bounding_box()
    share = (explorer.power() - LOWEST) / (HIGHEST - LOWEST)
    mouse, y = explorer.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 7 + share * (box["width"] - 14), y)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 4, y, steps=6)
    mouse.up()
    explorer.agrees(power=HIGHEST)


JOURNEY = (
    find_the_window_by_keyboard,
    change_the_format_by_keyboard,
    drag_the_histogram,
    choose_a_layer,
    choose_a_kind,
    drag_the_slider,
)


# -- in its lesson ---------------------------------------------------------------------------------


def test_lesson_05_in_jupyterlab(lab, copy_lesson, open_page):
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Explorer, JOURNEY)


@THEMES
def test_lesson_05_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Explorer, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {"power": LOWEST},
    {"power": 16},
    {"power": HIGHEST, "layer": "linear1"},
    {"power": 17, "fmt": "FP8_E5M2", "kind": "outputs"},
    {"power": 3, "fmt": "FP8_E4M3"},
    {"power": 0, "fmt": "BF16", "kind": "weights"},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (ScaleExplorer(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (ScaleExplorer(**position) for position in POSITIONS))
