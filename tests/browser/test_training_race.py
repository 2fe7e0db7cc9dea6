"""The training race as a learner meets it: by mouse, by keyboard, and with no click at all.

The training is real and made long enough to be stopped. What a button did is read from the kernel,
by a cell that runs afterwards.
"""

import nbformat
import pytest

from tests.browser.accessibility import assert_accessible
from tests.browser.figures import THEMES
from tests.browser.lab import KERNEL_IS_IDLE

pytestmark = pytest.mark.browser

SETUP = """
import torch
torch.set_num_threads(1)
from mptutor.data import load
from mptutor.experiments.race import race
from mptutor.experiments.recipes import AMP_FP16, FP32, NAIVE_FP16
from mptutor.experiments.tasks import adam, classify
from mptutor.models import mlp
from mptutor.widgets import TrainingRace

task = classify("an MLP", load("fashion-mnist-5k"), lambda: mlp((784, 64, 10)), adam())
def run(epochs, **options):
    return race(task, (FP32, NAIVE_FP16, AMP_FP16), seeds=(0,), epochs=epochs, **options)
"""
TELL = "r = figure.result; print('finished', r.finished, [len(run.losses) for run in r.runs])"
ENDLESS = 10**6
SETUP_CELL, FIGURE_CELL, RESULT_CELL = range(3)


@pytest.fixture
def open_race(lab, open_page):
    """Open a notebook with a race in JupyterLab, the race shown and not started."""

    def open_one(theme: str, epochs: int):
        name = f"race_{theme}_{epochs}.ipynb"
        cells = [SETUP, f"figure = TrainingRace(run, epochs={epochs})\nfigure", TELL]
        notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, lab.root / name)
        page = open_page(color_scheme=theme)
        lab.open(page, name)
        page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
        lab.run_cell(page, SETUP_CELL)
        lab.run_cell(page, FIGURE_CELL)
        return Race(lab, page)

    return open_one


#: The table is written anew with every drawing, so it is looked up each time.
FP32_HAS_TAKEN = """(steps) => {
  const rows = [...document.querySelectorAll(".mpt-standings tr")];
  const row = rows.find((row) => row.cells[0].innerText.trim() === "FP32");
  return row && parseInt(row.cells[2].innerText) >= steps;
}"""


GROWS = "(first) => document.querySelector('.mpt-lane').getAttribute('d') !== first"


class Race:
    """A race on a page, by what can be seen and pressed."""

    def __init__(self, lab, page):
        self.lab, self.page = lab, page
        self.figure = page.locator(".mpt-race").first
        self.figure.wait_for(timeout=90_000)
        self.start = self.figure.get_by_role("button", name="Start")
        self.stop = self.figure.get_by_role("button", name="Stop")

    def says(self, text: str):
        self.figure.get_by_role("status").filter(has_text=text).wait_for(timeout=60_000)

    def runs(self, steps: int):
        """Wait until the table shows that FP32 has taken so many steps."""
        self.page.wait_for_function(FP32_HAS_TAKEN, arg=steps, timeout=60_000)

    def tell(self):
        """Run the cell that asks for the result, without waiting for it."""
        self.lab.run_cell(self.page, RESULT_CELL)

    def told(self) -> str:
        output = self.page.locator(".jp-CodeCell").nth(RESULT_CELL)
        output = output.locator(".jp-OutputArea-output pre").last
        output.filter(has_text="finished").wait_for(timeout=60_000)
        return output.inner_text().strip()


def is_dark(race) -> bool:
    ink = race.figure.locator(".mpt-race-figure").evaluate("(f) => getComputedStyle(f).color")
    return "236" in ink


@THEMES
def test_it_is_started_and_stopped_by_mouse(open_race, theme):
    race = open_race(theme, ENDLESS)
    race.says("Ready.")
    race.start.click()
    race.says("Running.")
    assert race.start.is_disabled()
    race.runs(40)
    first = race.figure.locator(".mpt-lane").first.get_attribute("d")
    race.page.wait_for_function(GROWS, arg=first, timeout=60_000)
    assert_accessible(race.page, ".mpt-race")
    race.stop.click()
    race.says("Stopped. What has been done is kept.")
    assert race.stop.is_disabled() and is_dark(race) == (theme == "dark")
    assert race.figure.get_by_text("NaN at step 2").count() == 2, "in the table and in the curves"
    assert_accessible(race.page, ".mpt-race")
    race.tell()
    assert race.told().startswith("finished False")
    assert not race.page.complaints


def test_it_is_started_and_stopped_by_keyboard(open_race):
    race = open_race("light", ENDLESS)
    race.start.focus()
    for key in ("a", "b", "d", "d"):
        race.page.keyboard.press(key)
    race.page.keyboard.press("Enter")
    race.says("Running.")
    assert race.page.locator(".jp-CodeCell").count() == 3, "a key was the notebook's"
    race.runs(20)
    race.page.keyboard.press("Tab")
    assert race.stop.evaluate("(button) => button === document.activeElement")
    race.page.keyboard.press("Space")
    race.says("Stopped.")
    assert race.start.inner_text().strip() == "Start again"
    race.start.focus()
    race.page.keyboard.press("Space")
    race.says("Running.")
    race.stop.focus()
    race.page.keyboard.press("Enter")
    race.says("Stopped.")
    assert not race.page.complaints


def test_nobody_clicks(open_race):
    race = open_race("light", 2)
    race.tell()
    assert race.told() == "finished True [78, 10, 78]"
    race.says("Finished.")
    assert not race.page.complaints


def test_stop_is_heard_while_a_cell_waits_for_the_result(open_race):
    race = open_race("light", ENDLESS)
    race.tell()
    race.runs(20)
    race.stop.click()
    assert race.told().startswith("finished False")


def test_an_interrupted_cell_has_what_there_is(open_race):
    race = open_race("light", ENDLESS)
    race.tell()
    race.runs(20)
    race.page.evaluate("void jupyterapp.commands.execute('notebook:interrupt-kernel')")
    assert race.told().startswith("finished False")
    race.says("Stopped.")
