"""The forecast explorer as a learner meets it: in lesson 09, by mouse and by keyboard.

What should appear is taken from the model, which is tested against `mptutor.forecast`.
"""

import re

import pytest

from mptutor.widgets.forecast_explorer import ForecastExplorer
from tests.browser.figures import (
    THEMES,
    WIDTHS,
    Figure,
    assert_all_accessible,
    assert_nothing_is_cut_off,
    walk_exported,
    walk_in_jupyterlab,
)

pytestmark = [pytest.mark.browser, pytest.mark.lesson09]

LESSON = "09_speed_and_memory.ipynb"


# -- what a learner does ---------------------------------------------------------------------------


class Explorer(Figure):
    """The forecast explorer of a page."""

    name = "Forecast explorer"

    def __init__(self, page):
        super().__init__(page)
        self.batch = self.figure.get_by_role("slider", name="Batch size")
        self.layers = self.figure.get_by_role("slider", name="Layer")
        self.roof = self.figure.locator("svg.mpt-roofline")
        self.channels_last = self.figure.get_by_role("checkbox", name="channels last")
        self.model = ForecastExplorer()

    def choose_recipe(self, recipe: str):
        group = self.figure.get_by_role("radiogroup", name="Recipe")
        group.get_by_role("radio", name=re.compile(f"^{recipe}")).check()

    def agrees(self, **position):
        """Wait until the figure says what the model says in this position."""
        for name, value in position.items():
            setattr(self.model, name, value)
        self.says(self.model.describe())
        layer = self.model.result.layer
        self.says(f"{layer.layer} {layer.phase}", where=".mpt-layer-value")


def reach_the_goal_of_the_lesson(explorer):
    explorer.choose("MLP", "Network")
    explorer.agrees(model="mlp", layer=0)
    assert explorer.model.result.gain < 1 < explorer.model.result.peak_ratio
    explorer.batch.focus()
    explorer.press(*["ArrowRight"] * 7)
    explorer.agrees(power=14)
    assert explorer.model.result.gain > 1 > explorer.model.result.peak_ratio


def go_to_the_ends_by_keyboard(explorer):
    explorer.batch.focus()
    explorer.press("Home")
    explorer.agrees(power=0)
    explorer.press("End")
    explorer.agrees(power=15)


def compare_recipes(explorer):
    explorer.choose_recipe("FP32")
    explorer.agrees(recipe="FP32")
    explorer.press("ArrowDown")
    explorer.agrees(recipe="AMP FP16")


def change_the_gpu(explorer):
    explorer.choose("V100", "GPU")
    explorer.agrees(gpu="V100")
    explorer.press("ArrowRight")
    explorer.agrees(gpu="T4")
    explorer.choose("A100", "GPU")
    explorer.agrees(gpu="A100")


def lay_images_out(explorer):
    explorer.choose("ResNet-50", "Network")
    explorer.agrees(model="resnet50", power=9)
    before = explorer.model.result.chosen.step_ms
    explorer.channels_last.check()
    explorer.agrees(channels_last=True)
    assert explorer.model.result.chosen.step_ms < before
    explorer.channels_last.uncheck()
    explorer.agrees(channels_last=False)


def look_at_layers(explorer):
    explorer.layers.focus()
    explorer.press("ArrowRight", "ArrowRight")
    explorer.agrees(layer=2)
    explorer.roof.scroll_into_view_if_needed()
    mark = explorer.figure.locator(".mpt-mark").nth(7)
    box = mark.bounding_box()
    explorer.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    explorer.figure.locator(".mpt-ring").wait_for()
    explorer.agrees(layer=int(explorer.layers.input_value()))
    assert explorer.model.layer != 2
    explorer.layers.focus()
    explorer.press("Home")
    explorer.agrees(layer=0)


def drag_the_batch(explorer):
    explorer.batch.scroll_into_view_if_needed()
    box = explorer.batch.bounding_box()
    mouse, y = explorer.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] - 7, y)
    mouse.down()
    mouse.move(box["x"] + 7, y, steps=6)
    mouse.up()
    explorer.agrees(power=0)


def back_to_the_start(explorer):
    explorer.choose("small CNN", "Network")
    explorer.batch.focus()
    explorer.press("Home", *["ArrowRight"] * 7)
    explorer.agrees(model="small_cnn", power=7)


JOURNEY = (
    reach_the_goal_of_the_lesson,
    go_to_the_ends_by_keyboard,
    compare_recipes,
    change_the_gpu,
    lay_images_out,
    look_at_layers,
    drag_the_batch,
    back_to_the_start,
)


def test_lesson_09_in_jupyterlab(lab, copy_lesson, open_page):
    page = open_page(color_scheme="light")
    walk_in_jupyterlab(lab, copy_lesson(LESSON), page, Explorer, JOURNEY)


@THEMES
def test_lesson_09_exported(export, open_page, theme):
    page = open_page(offline=True)
    walk_exported(export(LESSON, theme), page, Explorer, JOURNEY, theme)


# -- alone, in many positions ----------------------------------------------------------------------

POSITIONS = (
    {"batch": 1, "model": "mlp", "gpu": "B200"},
    {"batch": 128},
    {"batch": 512, "model": "resnet50", "recipe": "FP32", "gpu": "T4"},
    {"batch": 16384, "model": "wide_mlp", "recipe": "pure BF16", "gpu": "V100"},
    {"batch": 2048, "model": "char_transformer", "recipe": "AMP BF16", "gpu": "RTX 4090"},
)


def widgets():
    return [ForecastExplorer(**position) for position in POSITIONS]


@THEMES
@WIDTHS
def test_nothing_is_cut_off(open_page, theme, width):
    page = open_page(width=width, color_scheme=theme, offline=True)
    assert_nothing_is_cut_off(page, widgets())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@THEMES
def test_accessibility(open_page, theme):
    assert_all_accessible(open_page(color_scheme=theme, offline=True), widgets())
