"""The update on the grid as a learner meets it: in lesson 04, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch, or from torch itself.
"""

import re

import pytest
import torch

from mptutor.widgets import UpdateGrid
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    show_alone,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson04]

LESSON = "04_master_weights.ipynb"


# -- what a learner does ---------------------------------------------------------------------------


class Grid(Figure):
    name = "Update on the grid"

    def __init__(self, page):
        super().__init__(page)
        self.ratio = self.figure.get_by_role("slider", name="Weight divided by update")
        self.steps = self.figure.get_by_role("slider", name="Updates applied")
        self.chart = self.figure.locator("svg.mpt-paths")

    def type(self, label: str, text: str):
        self.figure.get_by_role("textbox", name=label).fill(text)

    def stands(self, text: str | re.Pattern):
        """Wait until the line below the chart says this."""
        self.says(text, ".mpt-caption")

    def cells(self, fmt: str) -> list[str]:
        return self.figure.locator(f'tr:has(th:text-is("{fmt}")) td').all_inner_texts()


def torchs_weight(n: int, dtype: torch.dtype) -> float:
    weight = torch.ones((), dtype=dtype)
    for _ in range(n):
        weight = weight - 0.0002
    return weight.item()


def see_it_swallowed(figure):
    figure.steps.focus()
    figure.press("Home")
    figure.choose("FP16")
    figure.choose("in the format, to nearest")
    figure.type("Weight", "1")
    figure.type("Update", "-0.0002")
    figure.says("FP16: 1 − 0.0002 is rounded back to 1. Swallowed")
    assert figure.cells("BF16")[2:] == ["swallowed", "1"]
    assert float(figure.cells("FP32")[3]) == pytest.approx(torchs_weight(1000, torch.float32), 1e-6)


def reach_the_goal_of_the_lesson(figure):
    figure.type("Weight", "0.5")
    figure.says("FP16: 0.5 − 0.0002 becomes 0.4997559. Kept")
    figure.choose("BF16")
    figure.says("BF16: 0.5 − 0.0002 is rounded back to 0.5. Swallowed")
    figure.type("Weight", "0.06")
    figure.says("Kept")
    figure.type("Weight", "1")
    figure.choose("FP16")


def type_nonsense(figure):
    figure.type("Weight", "one")
    figure.says("“one” is no number I can read")
    figure.type("Weight", "5")
    figure.says("The weight is 5; allowed is 2^-6 to 2. Shown is the nearest.")
    figure.type("Weight", "1")
    figure.says("Swallowed")


def walk_along_the_ratio_by_keyboard(figure):
    figure.ratio.focus()
    figure.press("Home")
    figure.says("FP16: 1 − 0.4585 becomes 0.5415039. Kept: the weight is 2.18 times the update")
    figure.press("ArrowRight")
    figure.says("the weight is 2.38 times the update")
    figure.press("End")
    figure.says("Swallowed: the weight is 61,5")
    figure.type("Update", "-0.0002")


def step_with_a_master_copy_by_keyboard(figure):
    figure.figure.get_by_role("radio", name="in the format, at random", exact=True).focus()
    figure.press("ArrowRight")
    figure.says("The master copy keeps the update")
    figure.steps.focus()
    figure.press("Home")
    weights = []
    for n in range(1, 5):
        figure.press("ArrowRight")
        figure.stands(f"After {n} update")
        text = figure.figure.locator(".mpt-caption").inner_text()
        weights.append(float(re.search(r"weight is ([\d.]+);", text)[1]))
    assert weights[0] == 1 and weights[1] == weights[2] and weights[1] > weights[3]
    figure.press("End")
    figure.stands("After 1,000 updates the FP16 weight is 0.7998047; exact is 0.8.")


def round_at_random(figure):
    figure.choose("in the format, at random")
    figure.says("with a chance of")
    assert figure.figure.locator("path.mpt-chosen").count() == 6
    figure.choose("in the format, to nearest")
    figure.says("Swallowed")
    assert figure.figure.locator("path.mpt-chosen").count() == 1


def drag_in_the_chart(figure):
    figure.chart.scroll_into_view_if_needed()
    box = figure.chart.bounding_box()
    mouse, y = figure.page.mouse, box["y"] + 60
    mouse.move(box["x"] + 90, y)
    mouse.down()
    figure.stands(re.compile(r"After \d{1,2} updates? the FP16 weight is 1;"))
    mouse.move(box["x"] + box["width"] / 2, y, steps=5)
    mouse.up()
    figure.stands(re.compile(r"After [3-7]\d\d updates the FP16 weight is 1;"))


def drag_the_ratio(figure):
    figure.ratio.scroll_into_view_if_needed()
    box = figure.ratio.bounding_box()
    mouse, y = figure.page.mouse, box["y"] + box["height"] / 2
    mouse.click(box["x"] + 0.75 * box["width"], y)
    figure.says("Swallowed")
    mouse.move(box["x"] + 0.75 * box["width"], y)
    mouse.down()
    mouse.move(box["x"] + 0.2 * box["width"], y, steps=5)
    mouse.up()
    figure.says("Kept")


JOURNEY = (
    see_it_swallowed,
    reach_the_goal_of_the_lesson,
    type_nonsense,
    walk_along_the_ratio_by_keyboard,
    step_with_a_master_copy_by_keyboard,
    round_at_random,
    drag_in_the_chart,
    drag_the_ratio,
)


# -- in its lesson ---------------------------------------------------------------------------------


def test_lesson_04_in_jupyterlab(lab, copy_lesson, open_page):
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Grid, JOURNEY)


@THEMES
def test_lesson_04_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Grid, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {},
    {"fmt": "BF16", "way": "stochastic", "n": 400},
    {"way": "master", "n": 4},
    {"fmt": "FP32", "update": "2^-26", "n": 1000},
    {"fmt": "FP8_E4M3", "weight": 2, "update": "1", "n": 500},
    {"fmt": "FP8_E5M2", "weight": "2^-6", "update": "-2^-31", "way": "stochastic"},
    {"fmt": "FP16", "weight": 2, "update": "-1", "way": "master", "n": 3},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (UpdateGrid(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (UpdateGrid(**position) for position in POSITIONS))


def test_a_pair_takes_the_place_of_what_could_not_be_read(open_page):
    page = open_page(offline=True)
    show_alone(page, UpdateGrid())
    grid = Grid(page)
    grid.type("Weight", "1")
    grid.type("Weight", "1x")
    grid.says("“1x” is no number I can read")
    grid.click("1, -2^-12")
    grid.says("FP16: 1 − ")
    field = grid.figure.get_by_role("textbox", name="Weight")
    assert field.input_value() == "1" and field.get_attribute("aria-invalid") == "false"


def test_a_drag_that_began_elsewhere_passes_by(open_page):
    page = open_page(offline=True)
    show_alone(page, UpdateGrid(n=0))
    grid = Grid(page)
    grid.chart.scroll_into_view_if_needed()
    box = grid.chart.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, y, steps=4)
    page.mouse.up()
    grid.chart.click(button="right")
    page.wait_for_timeout(200)  # some frames
    assert grid.steps.input_value() == "0"
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    page.mouse.up()
    grid.stands(re.compile(r"After \d{3} updates"))
