"""The scaler simulator as a learner meets it: in lesson 06, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch.
"""

import re

import pytest

from mptutor.widgets import ScalerSimulator
from tests.browser.accessibility import assert_accessible

pytestmark = [pytest.mark.browser, pytest.mark.lesson06]

LESSON = "06_dynamic_loss_scaling.ipynb"
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
FALL = range(166)


# -- what a learner does ---------------------------------------------------------------------------


class Figure:
    """The figure of a page, by what can be seen and pressed."""

    def __init__(self, page):
        self.page = page
        self.figure = page.get_by_role("group", name="Scaler simulator").first
        self.figure.wait_for(timeout=60_000)
        self.init = self.figure.get_by_role("slider", name="Initial scale")
        self.step = self.figure.get_by_role("slider", name="Step to look at")
        self.chart = self.figure.locator("svg.mpt-scales")

    def choose(self, group: str, option: str):
        radios = self.figure.get_by_role("radiogroup", name=group)
        radios.get_by_role("radio", name=option, exact=True).check()

    def click(self, button: str):
        self.figure.get_by_role("button", name=button).click()

    def go_to(self, step: int):
        self.step.focus()
        self.press("Home", *["ArrowRight"] * step)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def says(self, text: str | re.Pattern):
        """Wait until the readout says this."""
        self.figure.locator(".mpt-readout", has_text=text).wait_for(timeout=5000)

    def ends(self, **position):
        """Wait until the summary is that of the model."""
        result = ScalerSimulator(**position).result
        text = f"{result.skips} of 400 steps are skipped"
        self.figure.locator(".mpt-summary", has_text=text).wait_for(timeout=5000)
        skipped = sum(step.kind == "skipped" for step in result.steps)
        assert self.figure.locator("path.mpt-skip").count() == skipped


def start_over(figure):
    figure.click("all healthy")
    figure.choose("Growth factor", "2")
    figure.choose("Growth interval", "25")
    figure.choose("Floor", "none")
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
    figure.choose("Growth factor", "16")
    figure.ends(growth_factor=16)
    figure.choose("Growth factor", "2")


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
    figure.choose("Floor", "1")
    figure.ends(nans=FALL, min_scale=1)


JOURNEY = (
    start_over,
    start_too_high_by_keyboard,
    change_the_rule_by_keyboard,
    break_steps_by_keyboard,
    break_a_step_by_mouse,
    reach_the_goal_of_the_lesson,
)


def walk(figure):
    for part in JOURNEY:
        part(figure)


def assert_theme(figure, theme):
    painted = figure.figure.evaluate("(f) => getComputedStyle(f).backgroundColor")
    brightness = [int(channel) for channel in re.findall(r"\d+", painted)[:3]]
    assert figure.figure.get_attribute("data-theme") == theme
    assert (min(brightness) > 200) if theme == "light" else (max(brightness) < 60)


# -- in JupyterLab ---------------------------------------------------------------------------------


def test_lesson_06_in_jupyterlab(lab, copy_lesson, open_page):
    page = open_page(color_scheme="light")
    lab.open(page, copy_lesson(LESSON))
    lab.run_all(page)
    figure = Figure(page)
    assert_theme(figure, "light")
    walk(figure)
    page.emulate_media(color_scheme="dark")
    page.locator('.mpt[data-theme="dark"]').first.wait_for(timeout=20_000)
    assert_theme(figure, "dark")
    walk(figure)
    assert not page.complaints


# -- exported, without kernel and network ----------------------------------------------------------


@THEMES
def test_lesson_06_exported(export, open_page, theme):
    page = open_page(offline=True)
    page.goto(export(LESSON, theme).as_uri())
    figure = Figure(page)
    assert_theme(figure, theme)
    walk(figure)
    assert not page.complaints


POSITIONS = (
    {},
    {"init_scale": 2.0**40, "spikes": [60, 61, 110], "step": 60},
    {"nans": FALL, "step": 166},
    {"nans": range(234, 400), "init_scale": 2.0**-10, "step": 399},
    {"nans": FALL, "min_scale": 1, "step": 165},
    {"growth_factor": 16, "backoff_factor": 0.9, "growth_interval": 5, "step": 200},
)


@THEMES
@pytest.mark.parametrize("width", [700, 1200])
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    for position in POSITIONS:
        page.set_content(bare_page(ScalerSimulator(**position)))
        assert Figure(page).figure.evaluate(CUT_OFF) == [], position
    assert not page.complaints


CUT_OFF = """(figure) => {
  const { left, right } = figure.getBoundingClientRect();
  const texts = [...figure.querySelectorAll("svg text, .mpt-readout, label, button")];
  return texts.filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width && (box.left < left || box.right > right);
  }).map((node) => node.textContent);
}"""


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    for position in POSITIONS:
        page.set_content(bare_page(ScalerSimulator(**position)))
        Figure(page)
        assert_accessible(page, ".mpt")


def bare_page(figure):
    return (
        f'<!doctype html><html lang="en"><title>Figure</title><main>{figure.static_html()}</main>'
    )
