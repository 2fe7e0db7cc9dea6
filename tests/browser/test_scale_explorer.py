"""The scale explorer as a learner meets it: in lesson 05, by mouse and by keyboard.

What should appear is taken from the model, which is tested against casts.
"""

import re

import pytest

from mptutor.widgets.scale_explorer import HIGHEST, LOWEST, ScaleExplorer
from tests.browser.accessibility import assert_accessible

pytestmark = [pytest.mark.browser, pytest.mark.lesson05]

LESSON = "05_loss_scaling.ipynb"
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


# -- what a learner does ---------------------------------------------------------------------------


class Explorer:
    """The scale explorer of a page, by what can be seen and pressed."""

    def __init__(self, page):
        self.page = page
        self.figure = page.get_by_role("group", name="Scale explorer").first
        self.figure.wait_for(timeout=60_000)
        self.slider = self.figure.get_by_role("slider", name="Loss scale")
        self.chart = self.figure.locator("svg.mpt-histogram")
        self.model = ScaleExplorer()

    def choose(self, option: str):
        self.figure.get_by_role("radio", name=option).check()

    def layer(self, name: str):
        return self.figure.get_by_role("radio", name=re.compile(f"^{name}"))

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def power(self) -> int:
        return int(self.slider.input_value())

    def agrees(self, **position):
        """Wait until the readout says what the model says in this position."""
        for name, value in position.items():
            setattr(self.model, name, value)
        said = self.model.describe()
        self.figure.locator(".mpt-readout", has_text=said).wait_for(timeout=5000)

    def says(self, text: str):
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
    explorer.says("GradScaler would take this step")
    explorer.press("ArrowRight")
    explorer.says("GradScaler would skip this step")
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


def walk(explorer):
    for part in JOURNEY:
        part(explorer)


def assert_theme(explorer, theme):
    painted = explorer.figure.evaluate("(f) => getComputedStyle(f).backgroundColor")
    brightness = [int(channel) for channel in re.findall(r"\d+", painted)[:3]]
    assert explorer.figure.get_attribute("data-theme") == theme
    assert (min(brightness) > 200) if theme == "light" else (max(brightness) < 60)


# -- in JupyterLab ---------------------------------------------------------------------------------


def test_lesson_05_in_jupyterlab(lab, copy_lesson, open_page):
    page = open_page(color_scheme="light")
    lab.open(page, copy_lesson(LESSON))
    lab.run_all(page)
    explorer = Explorer(page)
    assert_theme(explorer, "light")
    walk(explorer)
    page.emulate_media(color_scheme="dark")
    page.locator('.mpt[data-theme="dark"]').first.wait_for(timeout=20_000)
    assert_theme(explorer, "dark")
    walk(explorer)
    assert page.locator(".jp-RenderedText[data-mime-type*=stderr]").count() == 0
    assert not page.complaints


# -- exported, without kernel and network ----------------------------------------------------------


@THEMES
def test_lesson_05_exported(export, open_page, theme):
    page = open_page(offline=True)
    page.goto(export(LESSON, theme).as_uri())
    explorer = Explorer(page)
    assert_theme(explorer, theme)
    walk(explorer)
    assert not page.complaints


POSITIONS = (
    {"power": LOWEST},
    {"power": 16},
    {"power": HIGHEST, "layer": "linear1"},
    {"power": 17, "fmt": "FP8_E5M2", "kind": "outputs"},
    {"power": 3, "fmt": "FP8_E4M3"},
    {"power": 0, "fmt": "BF16", "kind": "weights"},
)


@THEMES
@pytest.mark.parametrize("width", [700, 1200])
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    for position in POSITIONS:
        page.set_content(bare_page(ScaleExplorer(**position)))
        assert Explorer(page).figure.evaluate(CUT_OFF) == [], position
    assert not page.complaints


CUT_OFF = """(figure) => {
  const { left, right } = figure.getBoundingClientRect();
  const texts = [...figure.querySelectorAll("svg text, dd, .mpt-readout, label, .mpt-safe-name")];
  return texts.filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width && (box.left < left || box.right > right);
  }).map((node) => node.textContent);
}"""


@THEMES
def test_accessibility(open_page, theme):
    page = open_page(color_scheme=theme, offline=True)
    for position in POSITIONS:
        page.set_content(bare_page(ScaleExplorer(**position)))
        Explorer(page)
        assert_accessible(page, ".mpt")


def bare_page(figure):
    return (
        f'<!doctype html><html lang="en"><title>Figure</title><main>{figure.static_html()}</main>'
    )
