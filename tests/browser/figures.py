"""What every widget's browser test does: meet the figure in its lesson, look for what is cut off.

A test module says what a learner does: a `Figure` that names the widget's own parts, and a journey,
functions of that figure in the order in which they are done. The rest is here: the journey in
JupyterLab, light and then dark; in the exported page, offline; and, position by position, the
figure alone at several widths and under axe-core.
"""

import re
from pathlib import Path

import pytest

from tests.browser.accessibility import assert_accessible

THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [700, 1200])


class Figure:
    """The first figure called ``name`` on a page, by what can be seen and pressed."""

    name: str

    def __init__(self, page):
        self.page = page
        self.figure = page.get_by_role("group", name=self.name, exact=True).first
        self.figure.wait_for(timeout=60_000)

    def press(self, *keys: str):
        for key in keys:
            self.page.keyboard.press(key)

    def choose(self, option: str, group: str | None = None):
        """Check the radio button called ``option``, of one group if several have it."""
        place = self.figure.get_by_role("radiogroup", name=group) if group else self.figure
        place.get_by_role("radio", name=option, exact=True).check()

    def click(self, button: str):
        self.figure.get_by_role("button", name=button).click()

    def says(self, text: str | re.Pattern, where: str = ".mpt-readout"):
        """Wait until the readout, or another part, says this."""
        self.figure.locator(where, has_text=text).first.wait_for(timeout=5000)

    def assert_theme(self, theme: str):
        """The figure is painted in the theme of the page it stands on."""
        painted = self.figure.evaluate("(f) => getComputedStyle(f).backgroundColor")
        brightness = [int(channel) for channel in re.findall(r"\d+", painted)[:3]]
        assert self.figure.get_attribute("data-theme") == theme
        assert (min(brightness) > 200) if theme == "light" else (max(brightness) < 60)


# -- in a notebook ---------------------------------------------------------------------------------


def write_notebook(path: Path, *cells: str) -> Path:
    """Write a notebook with these code cells, for what is in no lesson."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)
    return path


def walk_in_jupyterlab(lab, notebook: str, page, figure: type[Figure], journey):
    """Run ``notebook`` in JupyterLab and make the journey, in light and then in dark."""
    lab.open(page, notebook)
    lab.run_all(page)
    shown = figure(page)
    shown.assert_theme("light")
    walk(shown, journey)
    page.emulate_media(color_scheme="dark")
    page.locator('.mpt[data-theme="dark"]').first.wait_for(timeout=20_000)
    shown.assert_theme("dark")
    walk(shown, journey)
    assert page.locator(".jp-RenderedText[data-mime-type*=stderr]").count() == 0
    assert not page.complaints


def walk_exported(exported, page, figure: type[Figure], journey, theme: str):
    """Make the journey on a page that was exported, without kernel and network."""
    page.goto(exported.as_uri())
    shown = figure(page)
    shown.assert_theme(theme)
    walk(shown, journey)
    assert not page.complaints


def walk(figure: Figure, journey):
    for part in journey:
        part(figure)


# -- alone, in many positions ----------------------------------------------------------------------


def show_alone(page, widget):
    """Put a widget's static form alone on a page."""
    page.set_content(
        f'<!doctype html><html lang="en"><title>Figure</title><main>{widget.static_html()}</main>'
    )
    page.locator(".mpt").wait_for(timeout=60_000)


def assert_nothing_is_cut_off(page, widgets):
    """Fail with the words or parts that a figure's edge cuts, and with the position."""
    for widget in widgets:
        show_alone(page, widget)
        assert cut_off(page) == [], widget
    assert not page.complaints


def cut_off(page) -> list[str]:
    """Name the texts of the page's figure that reach beyond it, and the parts that would scroll."""
    return page.locator(".mpt").evaluate(_CUT_OFF)


_CUT_OFF = """(figure) => {
  const { left, right } = figure.getBoundingClientRect();
  const texts = "svg text, dd, td, th, label, button, .mpt-readout, .mpt-value, .mpt-error";
  const isCut = (box) => box.width && (box.left < left - 0.5 || box.right > right + 0.5);
  const wide = [figure, ...figure.querySelectorAll("table, .mpt-table")];
  return [
    ...[...figure.querySelectorAll(texts)]
      .filter((node) => isCut(node.getBoundingClientRect())).map((node) => node.textContent),
    ...wide.filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.className),
  ];
}"""


def assert_all_accessible(page, widgets):
    """Fail with axe-core's explanation if it finds anything serious in any of the figures."""
    for widget in widgets:
        show_alone(page, widget)
        assert_accessible(page, ".mpt")
