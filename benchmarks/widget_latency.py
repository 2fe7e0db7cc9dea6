"""Time the scale explorer from a key press to changed pixels, beside `interact` with a figure.

Both show the same histogram of the same gradients, in one notebook in a JupyterLab that this script
starts, in headless Chromium. The two take turns in being pressed keys on, at any time in a frame.
The page itself takes the time: from the event until a frame has been drawn in which the figure is
another one. It asks for frames only from the event on, since a page that always animates makes an
event wait for the next tick of the display. The slider is dragged and timed likewise. Then twenty
keys are pressed at up to 40 a second, faster than a keyboard repeats, to see in how many frames the
figure moves.

Unlike the other benchmarks this one measures time on the clock, since a kernel, a server and a
browser share the work. On a busy machine look at the ratio.

    python benchmarks/widget_latency.py [--json FILE]
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import playwright.sync_api as playwright
from common import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.browser.lab import Lab
from tests.chromium import launch_chromium

#: The contenders take turns; in a turn one of them gets several presses, with the focus on it.
TURNS, PRESSES = 5, 6
DRAG_STEPS = 30
FAST_KEYS = 20
FAST_KEYS_PER_S = 40  # at most, since a press takes time too
WAIT_MS = 5000

#: Before a turn, so that JupyterLab's own work for the focus is done, and before a press.
TURN_SETTLE_MS, SETTLE_MS = 2000, 300

EXPLORER = """
from mptutor.experiments.gradient_census import run_gradient_census
from mptutor.widgets import ScaleExplorer
counted = run_gradient_census("sigmoid")
ScaleExplorer(counted, power=-10)
"""

INTERACT = """
from ipywidgets import IntSlider, interact
from matplotlib import pyplot
census = counted.census()
%matplotlib inline

@interact(power=IntSlider(-10, -20, 40))
def draw(power):
    exponents = sorted(census.exponents)
    figure, axes = pyplot.subplots(figsize=(9, 2.5))
    axes.bar([e + power for e in exponents], [census.exponents[e] for e in exponents])
    axes.set_xlim(-60, 36)
    axes.set_title(f"{census.flushed('FP16', 2.0**power) / census.nonzero:.2%} flushed")
    pyplot.show()
"""

#: For each contender, what takes the keys, and an expression for what its figure looks like now.
CONTENDERS = {
    "scale explorer": (
        ".mpt-scale input.mpt-slider",
        "document.querySelector('.mpt-bars').getAttribute('transform')",
    ),
    "interact, inline figure": (
        ".widget-interact .noUi-handle",
        "document.querySelector('.widget-interact img')?.src ?? watch.last",
    ),
}

#: Watches one figure: ``arm`` before an event, ``times`` after it. ``count`` counts, for a while,
#: the frames with a change.
WATCH = """() => {
window.watch = { times: [], changes: 0, last: null, look: () => null };
watch.arm = (type, look) => {
  watch.look = look;
  watch.last = look();
  watch.waiting = type;
};
// After the frame: all of its drawing has been done by then, whoever asked for it first.
const afterFrame = (check) => requestAnimationFrame(() => setTimeout(check));
const hasChanged = () => {
  const now = watch.look();
  const changed = now !== watch.last;
  watch.last = now;
  return changed;
};
const untilChanged = () => {
  if (hasChanged()) watch.times.push(performance.now() - watch.start);
  else if (performance.now() < watch.start + WAIT_MS) afterFrame(untilChanged);
};
for (const type of ['keydown', 'pointermove'])
  window.addEventListener(type, () => {
    if (watch.waiting !== type) return;
    watch.waiting = null;
    watch.start = performance.now();
    afterFrame(untilChanged);
  }, true);
watch.count = (look, ms) => {
  watch.look = look;
  hasChanged();
  watch.changes = 0;
  watch.until = performance.now() + ms;
  const countOne = () => {
    setTimeout(() => (watch.changes += hasChanged()));
    if (performance.now() < watch.until) requestAnimationFrame(countOne);
  };
  requestAnimationFrame(countOne);
};
}""".replace("WAIT_MS", str(WAIT_MS))


class Contender:
    """One of the two figures in the page."""

    def __init__(self, page, name):
        self.page, self.name = page, name
        selector, self.look = CONTENDERS[name]
        self.control = page.locator(selector).first
        self.control.wait_for(timeout=60_000)

    def time(self, event: str, act) -> float | None:
        """Return the milliseconds from an event to the next frame with another figure."""
        before = self.page.evaluate("watch.times.length")
        self.page.evaluate(f"watch.arm('{event}', () => {self.look})")
        time.sleep(random.uniform(0, 2 / 60))
        act()
        try:
            grown = "(n) => watch.times.length > n"
            self.page.wait_for_function(grown, arg=before, timeout=WAIT_MS + 500)
        except playwright.TimeoutError:
            return None
        return self.page.evaluate("watch.times.at(-1)")

    def take_turn(self) -> list[float | None]:
        """Time some presses of an arrow key."""
        self.control.focus()
        self.page.wait_for_timeout(TURN_SETTLE_MS)
        return [self._press() for _ in range(PRESSES)]

    def _press(self) -> float | None:
        self.page.wait_for_timeout(SETTLE_MS)
        return self.time("keydown", lambda: self.page.keyboard.press("ArrowRight"))

    def frames_of_fast_keys(self) -> int:
        """Press many keys in a row and count the frames that showed another figure."""
        self.control.focus()
        self.page.evaluate(f"watch.count(() => {self.look}, 3000)")
        for _ in range(FAST_KEYS):
            self.page.keyboard.press("ArrowLeft")
            time.sleep(1 / FAST_KEYS_PER_S)
        self.page.wait_for_timeout(3000)
        return self.page.evaluate("watch.changes")


def drag_times(contender: Contender) -> list[float | None]:
    """Drag the explorer's slider one step at a time; the grip of the other one likewise."""
    page = contender.page
    contender.control.scroll_into_view_if_needed()
    box = contender.control.bounding_box()
    if contender.name == "scale explorer":
        track, share = box, (int(contender.control.input_value()) + 20) / 60
        track = {"x": track["x"] + 7, "width": track["width"] - 14}
        x = track["x"] + share * track["width"]
    else:
        track = page.locator(".widget-interact .noUi-base").bounding_box()
        x = box["x"] + box["width"] / 2
    y = box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    times = []
    for step in range(1, DRAG_STEPS + 1):
        to = x + step * track["width"] / 60 * 1.02
        times.append(contender.time("pointermove", lambda to=to: page.mouse.move(to, y)))
    page.mouse.up()
    return times


def measure(page) -> list[dict[str, object]]:
    """Return a row for every contender."""
    page.evaluate(WATCH)
    contenders = [Contender(page, name) for name in CONTENDERS]
    presses: dict[str, list[float | None]] = {name: [] for name in CONTENDERS}
    for _ in range(TURNS):
        for contender in contenders:
            presses[contender.name] += contender.take_turn()
    return [_row(contender, presses[contender.name]) for contender in contenders]


def _row(contender: Contender, presses: list[float | None]) -> dict[str, object]:
    frames = contender.frames_of_fast_keys()
    drags = drag_times(contender)
    return {
        "figure": contender.name,
        "key median ms": _median(presses),
        "key p95 ms": _p95(presses),
        "drag median ms": _median(drags),
        "drag p95 ms": _p95(drags),
        f"frames of {FAST_KEYS} fast keys": frames,
        "no change": presses.count(None) + drags.count(None),
    }


def _median(times: list[float | None]) -> float:
    seen = [t for t in times if t is not None]
    return statistics.median(seen) if seen else float("nan")


def _p95(times: list[float | None]) -> float:
    seen = sorted(t for t in times if t is not None)
    return seen[math.ceil(0.95 * len(seen)) - 1] if seen else float("nan")


def write_notebook(folder: Path) -> str:
    """Write the notebook with both figures."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in (EXPLORER, INTERACT)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "latency.ipynb")
    return "latency.ipynb"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        try:
            with launch_chromium() as browser:
                page = browser.new_page(viewport={"width": 1300, "height": 1500})
                lab.open(page, write_notebook(lab.root))
                lab.run_all(page)
                page.wait_for_timeout(3000)
                rows = measure(page)
        finally:
            lab.stop()
    report("From an input event to changed pixels, in JupyterLab", rows)


if __name__ == "__main__":
    main()
