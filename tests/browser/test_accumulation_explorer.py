"""The accumulation explorer as a learner meets it: in lesson 02, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch, or from torch itself.
"""

import re

import pytest
import torch
from playwright.sync_api import expect

from mptutor.widgets.accumulation_explorer import EVERY, AccumulationExplorer, N
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson02]

LESSON = "02_rounding_and_accumulation.ipynb"


# -- what a learner does ---------------------------------------------------------------------------


class Explorer(Figure):
    name = "Accumulation explorer"

    def __init__(self, page):
        super().__init__(page)
        self.slider = self.figure.get_by_role("slider", name="Terms added")
        self.chart = self.figure.locator("svg.mpt-sums")

    def chosen(self, option: str) -> bool:
        return self.figure.get_by_role("radio", name=option, exact=True).is_checked()

    def fact(self, term: str) -> str:
        return self.figure.locator(f'dt:text-is("{term}") + dd').inner_text()


def torchs_sum(n: int, dtype: torch.dtype) -> float:
    total = torch.zeros((), dtype=dtype)
    for term in torch.full((n,), 0.01, dtype=dtype):
        total = total + term
    return total.item()


def go_to_the_end(explorer):
    explorer.slider.focus()
    explorer.press("End")


def watch_it_stop_by_keyboard(explorer):
    explorer.choose("FP16")
    explorer.choose("nearest")
    explorer.choose("0.01")
    explorer.slider.focus()
    explorer.press("Home")
    explorer.says("Nothing has been added yet")
    explorer.press(*["ArrowRight"] * 4)
    explorer.says(f"After 200 terms the FP16 sum is {torchs_sum(200, torch.float16):.6g}")
    explorer.press("End")
    explorer.says("After 10,000 terms the FP16 sum is 32; exact is 100.02. It has stood still")
    assert float(explorer.fact("sum")) == torchs_sum(N, torch.float16)
    explorer.press("PageDown", "ArrowLeft")
    n = int(explorer.slider.input_value())
    assert n < N - EVERY and n % EVERY == 0
    explorer.says(f"After {n:,} terms")


def change_the_accumulator_by_keyboard(explorer):
    explorer.figure.get_by_role("radio", name="FP16", exact=True).focus()
    explorer.press("ArrowRight")
    assert explorer.chosen("BF16")
    explorer.says(f"the BF16 sum is {torchs_sum(N, torch.bfloat16):g}")
    explorer.press("ArrowLeft", "ArrowLeft")
    explorer.says("the FP32 sum is")
    explorer.choose("FP16")


def drag_in_the_chart(explorer):
    explorer.chart.scroll_into_view_if_needed()
    box = explorer.chart.bounding_box()
    mouse, y = explorer.page.mouse, box["y"] + 60
    mouse.move(box["x"] + 80, y)
    # The view answers in its own time: wait for the slider, do not read it.
    mouse.down()
    expect(explorer.slider).to_have_value(re.compile(r"^\d{1,3}$"))
    mouse.move(box["x"] + box["width"] / 2, y, steps=5)
    mouse.up()
    expect(explorer.slider).to_have_value(re.compile(r"^[3-7]\d{3}$"))
    many = int(explorer.slider.input_value())
    explorer.says(f"After {many:,} terms the FP16 sum is 32")


def drag_the_slider(explorer):
    explorer.slider.scroll_into_view_if_needed()
    box = explorer.slider.bounding_box()
    mouse, y = explorer.page.mouse, box["y"] + box["height"] / 2
    n = int(explorer.slider.input_value())
    mouse.move(box["x"] + 7 + n / N * (box["width"] - 14), y)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 5, y, steps=5)
    mouse.up()
    explorer.says("After 10,000 terms the FP16 sum is 32")


def reach_the_goal_of_the_lesson(explorer):
    explorer.choose("toward zero")
    explorer.says("After 10,000 terms the FP16 sum is 16")
    explorer.choose("up")
    explorer.says("After 10,000 terms the FP16 sum is 6468")
    explorer.choose("1")
    explorer.says("the FP16 sum has overflowed to ∞")
    explorer.figure.get_by_text("The sum is ∞. Whatever is added").wait_for(timeout=5000)


def round_at_random(explorer):
    explorer.choose("stochastic")
    explorer.choose("0.01")
    explorer.says("the 6 FP16 sums lie between")
    assert explorer.figure.locator("path.mpt-strong-line").count() == 6
    explorer.choose("nearest")
    explorer.says("After 10,000 terms the FP16 sum is 32")
    assert explorer.figure.locator("path.mpt-strong-line").count() == 1


JOURNEY = (
    go_to_the_end,
    watch_it_stop_by_keyboard,
    go_to_the_end,
    change_the_accumulator_by_keyboard,
    drag_in_the_chart,
    drag_the_slider,
    reach_the_goal_of_the_lesson,
    round_at_random,
)


# -- in its lesson ---------------------------------------------------------------------------------


def test_lesson_02_in_jupyterlab(lab, copy_lesson, open_page):
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Explorer, JOURNEY)


@THEMES
def test_lesson_02_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Explorer, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {"n": 0},
    {"n": 50, "accumulator": "BF16"},
    {"n": 2_000},
    {"n": N, "accumulator": "FP32"},
    {"n": N, "rounding": "up"},
    {"n": N, "rounding": "up", "term": "1"},
    {"n": 5_000, "accumulator": "BF16", "rounding": "stochastic", "term": "1"},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (AccumulationExplorer(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (AccumulationExplorer(**position) for position in POSITIONS))
