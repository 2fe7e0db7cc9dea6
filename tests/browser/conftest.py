"""One Chromium and one JupyterLab for all browser tests, and the lesson exported as a page."""

import shutil
from pathlib import Path

import pytest

from tests.browser.lab import Lab
from tests.chromium import launch_chromium

LESSONS = Path(__file__).parents[2] / "lessons"


@pytest.fixture(scope="session")
def chromium():
    with launch_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    pytest.importorskip("jupyterlab")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.stop()


@pytest.fixture
def copy_lesson(lab):
    """Copy a lesson to where JupyterLab can open it, and return its new name."""

    def copy(name: str) -> str:
        shutil.copy(LESSONS / name, lab.root / name)
        return name

    return copy


@pytest.fixture(scope="session")
def execute(tmp_path_factory):
    """Run a lesson, or the notebook at a path, once a session; it will hold no widget state."""
    nbformat = pytest.importorskip("nbformat")
    nbconvert = pytest.importorskip("nbconvert")
    folder = tmp_path_factory.mktemp("executed")

    def run(name: str | Path) -> Path:
        executed = folder / Path(name).name
        if not executed.exists():
            notebook = nbformat.read(LESSONS / name, as_version=4)
            runner = nbconvert.preprocessors.ExecutePreprocessor(store_widget_state=False)
            runner.preprocess(notebook, {"metadata": {"path": str(folder)}})
            nbformat.write(notebook, executed)
        return executed

    return run


@pytest.fixture(scope="session")
def export(execute):
    """Export a lesson, or the notebook at a path, run, as a page for a browser, light or dark."""
    nbconvert = pytest.importorskip("nbconvert")

    def write(name: str | Path, theme: str) -> Path:
        executed = execute(name)
        page = executed.with_name(f"{executed.stem}_{theme}.html")
        html, _ = nbconvert.HTMLExporter(theme=theme).from_filename(str(executed))
        page.write_text(html, encoding="utf-8")
        return page

    return write


@pytest.fixture
def open_page(chromium):
    """Open pages that note what goes wrong on them: ``page.complaints`` should stay empty."""
    contexts = []

    def open_one(width=1200, height=900, **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: _note(page, message))
        return page

    yield open_one
    for context in contexts:
        context.close()


def _note(page, message):
    # What a page cannot load, offline, from servers that the exporter names is not our doing.
    is_elsewhere = message.location.get("url", "").startswith("https://")
    if message.type == "error" and not is_elsewhere:
        page.complaints.append(message.text)
