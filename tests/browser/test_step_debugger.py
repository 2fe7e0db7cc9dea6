"""The step debugger as a learner meets it, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch.
"""

import pytest
from playwright.sync_api import expect

from mptutor.widgets import StepDebugger
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    walk_exported,
    walk_in_jupyterlab,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson10]

CELL = "from mptutor.widgets import StepDebugger\nStepDebugger()"


# -- what a learner does ---------------------------------------------------------------------------


class Debugger(Figure):
    name = "Step debugger"

    def __init__(self, page):
        super().__init__(page)
        self.menu = self.figure.get_by_role("combobox", name="Loop")
        self.slider = self.figure.get_by_role("slider", name="Stop")
        self.chart = self.figure.locator("svg.mpt-tape")

    def take(self, loop: str):
        self.menu.select_option(loop)
        self.runs(loop)

    def runs(self, loop: str):
        """Wait until this loop is shown."""
        expect(self.menu).to_have_value(loop)

    def click_line(self, code: str):
        self.figure.locator("li", has_text=code).first.click()

    def press_button(self, name: str):
        """Press a button by keyboard."""
        self.figure.get_by_role("button", name=name).focus()
        self.press("Enter")

    def moves(self, step: int) -> list[str]:
        """The row of a step in the table: outcome, movement, right movement, ratio, scale."""
        return self.figure.locator(f'tr:has(th:text-is("step {step}")) td').all_inner_texts()


def start_over(debugger):
    debugger.take("right order")
    debugger.choose("healthy", "Batch")
    debugger.choose("2¹⁶", "Scale")
    debugger.slider.focus()
    debugger.press("Home")
    debugger.says("Step 1, zero_grad: there are no gradients yet to clear.")


def step_through_by_keyboard(debugger):
    stops = StepDebugger().result.run.stops
    debugger.slider.focus()
    debugger.press("Home", *["ArrowRight"] * 5)
    norm = stops[5].gradients.norm
    debugger.says(f"Step 1, unscale_: divided by 2¹⁶, the gradient norm is {norm:.4g}")
    debugger.press("ArrowRight")
    debugger.says(f"Step 1, clip: the norm was {norm:.4g} and is 1.")
    debugger.press("ArrowLeft", "ArrowLeft")
    debugger.says("Step 1, backward: the gradient norm is ")
    debugger.press("End")
    debugger.says("Step 2, update: the scale stays at 2¹⁶.")
    debugger.press_button("◀ back")
    debugger.says("Step 2, step: the optimizer runs. The weights move by 0.1.")


def reach_the_goal_by_mouse(debugger):
    debugger.click_line("clip_grad_norm_")
    debugger.says("Step 2, clip: ")
    debugger.click("↑ earlier")
    debugger.runs("clip before unscale_")
    debugger.says("Step 2, clip: the norm was ")
    assert debugger.moves(1)[0] == "stepped" and debugger.moves(1)[3].startswith("÷ 65,")
    debugger.press_button("twice")
    debugger.says("One call at a time: put the loop back in the right order")
    debugger.runs("clip before unscale_")
    debugger.click("↓ later")
    debugger.runs("right order")
    assert debugger.moves(1)[3] == "the same"


def break_it_by_keyboard(debugger):
    debugger.slider.focus()
    debugger.press("Home", *["ArrowRight"] * 5)
    debugger.press_button("twice")
    debugger.runs("unscale_ twice")
    error = StepDebugger("unscale_ twice").result.run.error
    debugger.says("Step 1, unscale_: RuntimeError: unscale_() has already been called")
    debugger.says(error, "li.mpt-raised")
    assert debugger.moves(2)[0] == "never comes"
    debugger.press_button("right order")
    debugger.runs("right order")
    debugger.press_button("leave out")
    debugger.runs("no unscale_")
    debugger.press_button("right order")


def answer_the_question(debugger):
    debugger.take("no zero_grad")
    debugger.choose("one that overflows", "Batch")
    debugger.slider.focus()
    debugger.press("End")
    debugger.says("Step 2, update: the scale becomes 2¹⁴.")
    assert [debugger.moves(step)[0] for step in (1, 2)] == ["skipped", "skipped"]
    debugger.figure.get_by_role("radio", name="2¹⁶").focus()
    debugger.press("ArrowLeft")
    debugger.says("Step 2, update: the scale stays at 2¹⁰.")
    assert [debugger.moves(step)[0] for step in (1, 2)] == ["stepped", "stepped"]


def point_into_the_chart(debugger):
    debugger.take("right order")
    debugger.chart.scroll_into_view_if_needed()
    box = debugger.chart.bounding_box()
    mouse, y = debugger.page.mouse, box["y"] + 100
    mouse.move(box["x"] + 50, y)
    mouse.down()
    debugger.says("Step 1, zero_grad")
    mouse.move(box["x"] + box["width"] - 14, y, steps=4)
    mouse.up()
    debugger.says("Step 2, update")


JOURNEY = (
    start_over,
    step_through_by_keyboard,
    reach_the_goal_by_mouse,
    break_it_by_keyboard,
    answer_the_question,
    point_into_the_chart,
)


# -- in a notebook ---------------------------------------------------------------------------------


def test_in_jupyterlab(lab, open_page):
    notebook = write_notebook(lab.root / "step_debugger.ipynb", CELL)
    walk_in_jupyterlab(lab, notebook.name, open_page(), Debugger, JOURNEY)


@THEMES
def test_exported(export, open_page, theme, tmp_path):
    notebook = write_notebook(tmp_path / "step_debugger.ipynb", CELL)
    walk_exported(export(notebook, theme), open_page(offline=True), Debugger, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

POSITIONS = (
    {"stop": 5},
    {"loop": "no unscale_", "batch": "tiny", "scale": 2.0**20, "stop": 6},
    {"loop": "no zero_grad", "batch": "overflowing", "stop": 12},
    {"loop": "optimizer.step(), no unscale_", "batch": "overflowing", "stop": 6},
    {"loop": "backward twice", "scale": 1, "stop": 5},
    {"loop": "model.half()", "batch": "tiny", "stop": 99},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (StepDebugger(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (StepDebugger(**position) for position in POSITIONS))
