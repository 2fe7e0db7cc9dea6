"""The scaler simulator as a learner meets it: in lesson 06, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch.
"""

import re

import pytest

from mptutor.widgets import ScalerSimulator
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson06]

LESSON = "06_dynamic_loss_scaling.ipynb"
FALL = range(166)


# -- what a learner does ---------------------------------------------------------------------------


class Simulator(Figure):
    name = "Scaler simulator"

    def __init__(self, page):
        super().__init__(page)
        self.init = self.figure.get_by_role("slider", name="Initial scale")
        self.step = self.figure.get_by_role("slider", name="Step to look at")
        self.chart = self.figure.locator("svg.mpt-scales")

    def go_to(self, step: int):
        self.step.focus()
        self.press("Home", *["ArrowRight"] * step)

    def ends(self, **position):
        """Wait until the summary is that of the model."""
        result = ScalerSimulator(**position).result
        text = f"{result.skips} of 400 steps are skipped"
        self.says(text, ".mpt-summary")
        skipped = sum(step.kind == "skipped" for step in result.steps)
        assert self.figure.locator("path.mpt-skip").count() == skipped


def start_over(figure):
    figure.click("all healthy")
    figure.choose("2", "Growth factor")
    figure.choose("25", "Growth interval")
    figure.choose("none", "Floor")
    figure.ends()


def start_too_high_by_keyboard(figure):
    figure.init.focus()
    figure.press(*["ArrowRight"] * 8)
    figure.ends(init_scale=2.0**24)
    figure.go_to(0)
    figure.says("is beyond FP16. Skipped, and the scale becomes 2²³.")
    figure.init.focus()
    figure.press(*["ArrowLeft"] * 8)
    figure.ends()


def change_the_rule_by_keyboard(figure):
    group = figure.figure.get_by_role("radiogroup", name="Growth interval")
    group.get_by_role("radio", name="25", exact=True).focus()
    figure.press("ArrowLeft", "ArrowLeft")
    figure.ends(growth_interval=5)
    figure.press("ArrowRight", "ArrowRight")
    figure.choose("16", "Growth factor")
    figure.ends(growth_factor=16)
    figure.choose("2", "Growth factor")


def break_steps_by_keyboard(figure):
    figure.go_to(5)
    figure.press("s")
    figure.says("Step 5: the largest gradient, 113 × 2¹⁶")
    figure.ends(spikes=[5])
    figure.press("ArrowRight", "n")
    figure.says("Step 6: the gradients are NaN, at any scale. Skipped")
    figure.ends(spikes=[5], nans=[6])
    figure.press("Delete", "ArrowLeft", "s")
    figure.ends()


def break_a_step_by_mouse(figure):
    figure.chart.scroll_into_view_if_needed()
    box = figure.chart.bounding_box()
    figure.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 100)
    figure.says(re.compile(r"Step (18|19|20)\d"))
    step = int(figure.step.input_value())
    figure.click("spike")
    figure.says(f"Step {step}: the largest gradient")
    figure.ends(spikes=[step])
    figure.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 100)
    figure.press("Delete")
    figure.ends()


def reach_the_goal_of_the_lesson(figure):
    figure.go_to(0)
    figure.click("166 NaN batches")
    figure.ends(nans=FALL)
    figure.go_to(166)
    figure.says("Step 166: the batch is fine and passes the check. But 1 / scale is infinite")
    figure.press("ArrowRight")
    figure.says("Step 167: the weights are NaN since step 166")
    figure.go_to(143)
    figure.press("Delete")
    figure.says("rounds to 0 in FP16. The step runs and learns nothing.")
    figure.press("n", "ArrowRight", "Delete")
    figure.says("Step 144: the batch is fine and passes the check")
    figure.press("n")
    figure.choose("1", "Floor")
    figure.ends(nans=FALL, min_scale=1)


JOURNEY = (
    start_over,
    start_too_high_by_keyboard,
    change_the_rule_by_keyboard,
    break_steps_by_keyboard,
    break_a_step_by_mouse,
    reach_the_goal_of_the_lesson,
)


# -- in its lesson ---------------------------------------------------------------------------------


def test_lesson_06_in_jupyterlab(lab, copy_lesson, open_page):
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Simulator, JOURNEY)


@THEMES
def test_lesson_06_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Simulator, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {},
    {"init_scale": 2.0**40, "spikes": [60, 61, 110], "step": 60},
    {"nans": FALL, "step": 166},
    {"nans": range(234, 400), "init_scale": 2.0**-10, "step": 399},
    {"nans": FALL, "min_scale": 1, "step": 165},
    {"growth_factor": 16, "backoff_factor": 0.9, "growth_interval": 5, "step": 200},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (ScalerSimulator(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (ScalerSimulator(**position) for position in POSITIONS))
