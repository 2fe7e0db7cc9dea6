"""The policy explorer as a learner meets it: in lesson 07, by mouse and by keyboard.

What should appear is taken from the model, which is tested against torch.
"""

import re

import pytest

from mptutor.widgets import PolicyExplorer
from mptutor.widgets.policy_explorer import LONGEST, PRESETS
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

pytestmark = [pytest.mark.browser, pytest.mark.lesson07]

LESSON = "07_autocast.ipynb"

FULL = f"A chain of {LONGEST} ops is as long as it gets. Remove one first."


# -- what a learner does ---------------------------------------------------------------------------


class Explorer(Figure):
    name = "Policy explorer"

    def __init__(self, page):
        super().__init__(page)
        self.search = self.figure.get_by_role("combobox", name="Find an op")
        self.options = self.figure.get_by_role("option")

    def find(self, *typed: str):
        """Put the focus into the search and type, after what is in it is gone."""
        self.search.focus()
        self.press("Escape", *typed)

    def shows(self, **position):
        """Wait until the readout, the list and the chain are those of the model."""
        widget = PolicyExplorer(**position)
        result = widget.result
        chips = [[f"CUDA{s.cuda or '–'}", f"CPU{s.cpu or '–'}"] for s in result.steps]
        expected = [widget.describe(), result.op, len(result.matches), chips]
        for _ in range(100):
            if self.figure.evaluate(SEEN) == expected:
                return
            self.page.wait_for_timeout(50)
        assert self.figure.evaluate(SEEN) == expected


SEEN = """(figure) => [
  figure.querySelector(".mpt-readout").textContent,
  figure.querySelector('[role="option"][aria-selected="true"] .mpt-op-name').textContent,
  figure.querySelectorAll('[role="option"]:not([hidden])').length,
  [...figure.querySelectorAll("li.mpt-step")].slice(1).map((step) =>
    [...step.querySelectorAll(".mpt-dtype")].map((chip) => chip.textContent)),
]"""


def start_over(figure):
    figure.click("clear")
    figure.choose("float32", "The chain starts with")
    figure.choose("like the tensor", "Other operands are")
    figure.find(*"linear")
    figure.press("Escape")
    figure.shows(op="linear")


def search_by_keyboard(figure):
    figure.find(*"softm")
    figure.shows(search="softm", op="softmax")
    figure.press("ArrowDown")
    op = PolicyExplorer(search="softm").result.matches[1]
    figure.shows(search="softm", op=op)
    figure.press("ArrowUp", "Escape", "PageDown", "PageUp")
    figure.shows(op="softmax")
    figure.find(*"xyz")
    figure.shows(search="xyz", op="softmax")
    figure.press("Escape")


def reach_the_goal_by_keyboard(figure):
    for op in ("linear", "softmax", "matmul"):
        figure.find(*op, "Enter")
    figure.press("Escape")
    figure.shows(op="matmul", chain=["linear", "softmax", "matmul"])
    differing = figure.figure.locator("li.mpt-differs .mpt-step-name").all_text_contents()
    assert differing == ["softmax"]


def take_steps_away_by_keyboard(figure):
    figure.figure.get_by_role("button", name="Remove softmax, step 2").focus()
    figure.press("Enter")
    figure.shows(op="matmul", chain=["linear", "matmul"])
    figure.press("Enter")
    figure.shows(op="matmul", chain=["linear"])
    figure.press("Enter")
    figure.shows(op="matmul")
    assert figure.figure.get_by_role("button", name="clear").evaluate(
        "(button) => button === document.activeElement"
    )


def build_a_chain_by_mouse(figure):
    figure.find(*"norm")
    figure.options.filter(has_text=re.compile("^layer_norm")).click()
    figure.click("add to the chain")
    figure.shows(search="norm", op="layer_norm", chain=["layer_norm"])
    figure.options.filter(has_text=re.compile("^batch_norm")).dblclick()
    figure.shows(search="norm", op="batch_norm", chain=["layer_norm", "batch_norm"])
    figure.choose("float16", "The chain starts with")
    figure.shows(search="norm", op="batch_norm", chain=["layer_norm", "batch_norm"], start="16-bit")
    figure.find()


def look_at_a_chain_that_breaks_off(figure):
    figure.click("probabilities")
    figure.find(*"binary_cross_entropy")
    figure.press("Escape")
    figure.shows(op="binary_cross_entropy", chain=PRESETS["probabilities"], start="16-bit")
    figure.says("unsafe to autocast", ".mpt-error-text")
    figure.click("transformer MLP")
    figure.choose("float32", "Other operands are")
    figure.shows(
        op="binary_cross_entropy",
        chain=PRESETS["transformer MLP"],
        start="16-bit",
        other="float32",
    )


def make_the_chain_too_long(figure):
    figure.click("clear")
    figure.find(*"mm", *["Enter"] * (LONGEST + 1))
    figure.says(FULL)
    figure.press("Escape")


JOURNEY = (
    start_over,
    search_by_keyboard,
    reach_the_goal_by_keyboard,
    take_steps_away_by_keyboard,
    build_a_chain_by_mouse,
    look_at_a_chain_that_breaks_off,
    make_the_chain_too_long,
)


# -- in its lesson ---------------------------------------------------------------------------------


def test_lesson_07_in_jupyterlab(lab, copy_lesson, open_page):
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Explorer, JOURNEY)


@THEMES
def test_lesson_07_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Explorer, JOURNEY, theme)


# -- alone -----------------------------------------------------------------------------------------

LONG = ["nn.MultiheadAttention, weights", "binary_cross_entropy_with_logits"]
POSITIONS = (
    {},
    {"op": "softmax", "chain": ["linear", "softmax", "matmul"]},
    {"op": LONG[0], "chain": LONG * 6, "start": "16-bit", "other": "float32"},
    {"op": "binary_cross_entropy", "chain": [*PRESETS["probabilities"], "mm"]},
    {"search": "xyz"},
    {"search": "loss", "op": "ctc_loss", "chain": ["ctc_loss"] * LONGEST},
)


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, (PolicyExplorer(**position) for position in POSITIONS))


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    assert_all_accessible(page, (PolicyExplorer(**position) for position in POSITIONS))


def test_what_could_not_be_done_outlives_a_drawing_asked_for_before_it(open_page):
    """Two keys may arrive between two frames: the first fills the chain, the second is too much."""
    page = open_page(offline=True)
    show_alone(page, PolicyExplorer(search="mm", op="mm", chain=["mm"] * (LONGEST - 1)))
    explorer = Explorer(page)
    explorer.search.evaluate(PRESS_QUICKLY, ["Enter", "Enter"])
    explorer.says(FULL)
    explorer.find()
    explorer.shows(op="mm", chain=["mm"] * LONGEST)


PRESS_QUICKLY = """(search, keys) => {
  for (const key of keys) search.dispatchEvent(new KeyboardEvent("keydown", { key }));
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def test_a_cross_takes_away_the_op_it_stands_beside(open_page):
    """Also beside an op that is unknown, and if another was taken away since the last drawing."""
    page = open_page(offline=True)
    show_alone(page, PolicyExplorer(chain=["bogus", "mm", "add", "relu"]))
    explorer = Explorer(page)
    crosses = explorer.figure.get_by_role("button", name="Remove")
    explorer.figure.evaluate(CLICK_TWO, [0, 1])
    explorer.shows(chain=["bogus", "add", "relu"])
    assert crosses.count() == 2


CLICK_TWO = """(figure, places) => {
  const crosses = [...figure.querySelectorAll("button.mpt-remove")];
  for (const place of places) crosses[place].click();
}"""
