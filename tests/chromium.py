"""Where Chromium is, and how the tests start it."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: Headless, quiet, and without calling home.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium():
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launch_chromium():
    """Start the system's Chromium through Playwright; skip the test where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api")
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"no Chromium on the PATH (looked for {', '.join(NAMES)})")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield browser
        browser.close()
