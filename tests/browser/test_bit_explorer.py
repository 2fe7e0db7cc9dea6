"""The bit explorer in lesson 01, by mouse and by keyboard, in JupyterLab and exported.

What should appear is computed by `FloatFormat`, not typed in.
"""

import pytest

from mptutor.formats import BF16, FP16, FloatFormat
from mptutor.widgets import BitExplorer
from mptutor.widgets.typed_numbers import print_number
from tests.browser.accessibility import assert_accessible
from tests.browser.figures import (
    THEMES,
    Figure,
    cut_off,
    show_alone,
    walk_exported,
    walk_in_jupyterlab,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson01]

LESSON = "01_number_formats.ipynb"


# -- what a learner does ----


class Explorer(Figure):
    name = "Bit explorer"

    def __init__(self, page):
        super().__init__(page)
        self.number = self.figure.get_by_label("Number", exact=True)
        self.slider = self.figure.get_by_role("slider")

    def row(self, fmt: FloatFormat):
        return self.figure.locator(f'[data-format="{fmt.name}"]')

    def bit(self, fmt: FloatFormat, place: int):
        """The bit at ``place``, from the left."""
        return self.row(fmt).get_by_role("switch").nth(place)

    def code(self, fmt: FloatFormat) -> int:
        return int("".join(self.row(fmt).get_by_role("switch").all_inner_texts()), 2)

    def holds(self, fmt: FloatFormat, code: int):
        """Wait until the row of ``fmt`` shows this code and the readout its value."""
        self.says(f"{fmt.name} holds {print_number(fmt.decode(code).value)} exactly")
        assert self.code(fmt) == code


def flip_bits_by_mouse(explorer):
    explorer.number.fill("0.5")
    code = FP16.encode(0.5)
    for place in (15, 1, 0):
        code ^= 1 << (15 - place)
        explorer.bit(FP16, place).click()
        explorer.holds(FP16, code)
    assert explorer.code(BF16) == BF16.encode(FP16.decode(code).value)


def flip_bits_by_keyboard(explorer):
    explorer.number.fill("0.5")
    explorer.bit(FP16, 0).focus()
    explorer.press("Space")
    explorer.holds(FP16, FP16.encode(-0.5))
    explorer.press("ArrowRight", "1", "1")
    explorer.holds(FP16, FP16.encode(-0.5) | 0b0110_0000_0000_0000)
    explorer.press("Home", "0", "End", "Enter", "ArrowUp", "ArrowDown")
    explorer.holds(FP16, 0b0_11110_0000000001)


def type_codes_bit_by_bit(explorer):
    explorer.bit(FP16, 0).focus()
    explorer.press(*"0111101111111111")
    explorer.holds(FP16, FP16.max_code)


def step_with_the_slider(explorer):
    explorer.number.fill("2048")
    explorer.slider.focus()
    explorer.press("ArrowRight")
    explorer.holds(FP16, FP16.encode(2050))
    explorer.press("ArrowLeft", "ArrowLeft")
    explorer.holds(FP16, FP16.encode(2047))
    explorer.press("PageUp")
    explorer.holds(FP16, FP16.encode(4094))
    explorer.press("End", "ArrowUp")
    explorer.says("FP16 holds inf exactly")
    explorer.press("Home")
    explorer.says("FP16 holds -65504 exactly")


def drag_the_slider(explorer):
    explorer.number.fill("0.1")
    explorer.slider.scroll_into_view_if_needed()
    box = explorer.slider.bounding_box()
    middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse = explorer.page.mouse
    mouse.move(middle + 100, y)
    mouse.down()
    mouse.move(middle + 0.9 * box["width"] / 2, y, steps=5)
    large = float(explorer.number.input_value())
    mouse.move(middle - 0.9 * box["width"] / 2, y, steps=5)
    small = float(explorer.number.input_value())
    mouse.up()
    assert 100 < large < FP16.max and -FP16.max < small < -100
    assert explorer.code(FP16) == FP16.encode(small)


def type_numbers(explorer):
    explorer.number.fill("2048+1")
    explorer.says("FP16 stores 2048+1 as 2048. That is off by 0.049 %.")
    explorer.number.fill("2^")
    explorer.says("“2^” is no number I can read.")
    assert explorer.number.get_attribute("aria-invalid") == "true"
    assert explorer.code(FP16) == FP16.encode(2049)
    explorer.number.fill("2^-25")
    explorer.says("2^-25 is too small for FP16. It becomes 0.")
    explorer.figure.get_by_role("button", name="1/3", exact=True).click()
    explorer.says("FP16 stores 1/3 as 0.33325")
    explorer.number.fill("65520")
    explorer.says("65520 is too large for FP16. It becomes ∞.")
    explorer.row(BF16).get_by_role("radio").check()
    explorer.says("BF16 stores 65520 as 65536.")
    explorer.row(FP16).get_by_text("FP16").click()


JOURNEY = (
    flip_bits_by_mouse,
    flip_bits_by_keyboard,
    type_codes_bit_by_bit,
    step_with_the_slider,
    drag_the_slider,
    type_numbers,
)


def press_what_jupyterlab_binds(explorer):
    """In a notebook m makes a cell Markdown, d d deletes it, 0 0 restarts the kernel."""
    figures = explorer.page.locator(".mpt").count()
    buttons = explorer.figure.get_by_role("button").first
    for control in (explorer.slider, explorer.bit(FP16, 15), buttons):
        control.focus()
        explorer.press("d", "d", "0", "0", "m")
    assert explorer.page.locator(".jp-Dialog").count() == 0
    assert explorer.page.locator(".mpt").count() == figures


# -- in JupyterLab ----


def test_lesson_01_in_jupyterlab(lab, copy_lesson, open_page):
    journey = (*JOURNEY, press_what_jupyterlab_binds)
    walk_in_jupyterlab(lab, copy_lesson(LESSON), open_page(), Explorer, journey)


def test_the_kernel_knows_what_the_learner_did(lab, open_page):
    write_notebook(lab.root / "live.ipynb", *LIVE_CELLS)
    page = open_page()
    lab.open(page, "live.ipynb")
    lab.run_all(page)
    explorer = Explorer(page)
    explorer.bit(FP16, 0).click()
    explorer.holds(FP16, FP16.encode(-0.25))
    lab.run_cell(page, 1)
    page.locator(".jp-RenderedText", has_text="wanted -0.25").wait_for(timeout=20_000)
    lab.run_cell(page, 2)
    explorer.says("BF16 stores 2048+1 as 2048.")
    assert not page.complaints


LIVE_CELLS = [
    "from mptutor.widgets import BitExplorer\nexplorer = BitExplorer(0.25)\nexplorer",
    "print('wanted', explorer.result.wanted)",
    "if explorer.result.wanted < 0: explorer.text, explorer.fmt = '2048+1', 'BF16'",
]


def test_an_untrusted_notebook_shows_the_picture(lab, execute, open_page):
    (lab.root / "untrusted.ipynb").write_bytes(execute(LESSON).read_bytes())
    page = open_page()
    lab.open(page, "untrusted.ipynb")
    picture = page.locator('.jp-OutputArea img[alt*="FP16 stores 0.1"]')
    picture.wait_for(timeout=20_000)
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 500
    assert page.locator(".mpt").count() == 0


# -- exported, without kernel and network ----


@THEMES
def test_lesson_01_exported(export, open_page, theme):
    walk_exported(export(LESSON, theme), open_page(offline=True), Explorer, JOURNEY, theme)


@THEMES
@pytest.mark.parametrize("width", [600, 700, 1200])
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    show_alone(page, BitExplorer(0.1))
    explorer = Explorer(page)
    for text in ("2^-24", "-65520", "-2^-149", "nan", "2048+1"):
        explorer.number.fill(text)
        for fmt in (FP16, BF16):
            explorer.row(fmt).get_by_role("radio").check()
            assert cut_off(page) == [], (text, fmt)


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    show_alone(page, BitExplorer(0.1))
    explorer = Explorer(page)
    for text, fmt in (("0.1", FP16), ("2^", BF16)):
        explorer.number.fill(text)
        explorer.row(fmt).get_by_role("radio").check()
        assert_accessible(page, ".mpt")


def test_a_complaint_outlives_a_drawing_that_was_asked_for_before_it(open_page):
    """Two keys may arrive between two frames: the first makes a number, the second none."""
    page = open_page(offline=True)
    show_alone(page, BitExplorer(0.1))
    explorer = Explorer(page)
    explorer.number.evaluate(TYPE_QUICKLY, ["2", "2^"])
    explorer.says("“2^” is no number I can read.")
    assert explorer.number.input_value() == "2^"
    assert explorer.number.get_attribute("aria-invalid") == "true"
    explorer.number.fill("2^3")
    explorer.says("FP16 holds 2^3 exactly.")
    assert explorer.number.get_attribute("aria-invalid") == "false"


TYPE_QUICKLY = """(input, texts) => {
  for (const text of texts) {
    input.value = text;
    input.dispatchEvent(new Event("input"));
  }
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def test_a_bit_typed_twice_between_two_frames_is_what_was_typed_last(open_page):
    page = open_page(offline=True)
    show_alone(page, BitExplorer(0.5))
    explorer = Explorer(page)
    explorer.bit(FP16, 0).evaluate(PRESS_QUICKLY, ["1", "0"])
    explorer.holds(FP16, FP16.encode(0.5))


PRESS_QUICKLY = """(bit, keys) => {
  for (const key of keys) bit.dispatchEvent(new KeyboardEvent("keydown", { key }));
}"""


def test_typing_where_there_is_no_code_starts_from_zero(open_page):
    page = open_page(offline=True)
    show_alone(page, BitExplorer("nan", formats=("FP16", "FP6_E3M2")))
    explorer = Explorer(page)
    row = explorer.figure.locator('[data-format="FP6_E3M2"]').get_by_role("switch")
    assert row.all_inner_texts() == ["·"] * 6
    row.nth(0).focus()
    explorer.press("0")
    explorer.says("FP6 E3M2 holds 0 exactly")
    assert row.all_inner_texts() == ["0"] * 6
