"""`mptutor lab`: finds the course and opens it, and leaves the user's own set-up alone."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mptutor import course, lab
from tests.chromium import launch_chromium

NOTEBOOK = {
    "cells": [{"cell_type": "markdown", "id": "1", "metadata": {}, "source": "# Start here"}],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def make_course(folder):
    (folder / "lessons").mkdir(parents=True)
    (folder / course.FIRST_LESSON).write_text(json.dumps(NOTEBOOK))
    return folder.resolve()


# --- finding the course


def test_the_course_is_found_from_inside_it(tmp_path, monkeypatch):
    root = make_course(tmp_path / "course")
    for inside in (root, root / "lessons"):
        monkeypatch.chdir(inside)
        assert course.find_course() == root


def test_the_course_is_found_beside_an_editable_package(tmp_path, monkeypatch):
    root = make_course(tmp_path / "clone")
    monkeypatch.setattr(course, "__file__", str(root / "mptutor" / "course.py"))
    assert course.find_course(tmp_path) == root


def test_no_course_is_a_clear_error(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(course, "__file__", str(tmp_path / "site-packages" / "mptutor" / "x.py"))
    with pytest.raises(course.CourseNotFoundError, match=r"no lessons/00_start_here.ipynb in"):
        course.find_course(tmp_path)


# --- starting JupyterLab


@pytest.fixture
def checked(monkeypatch):
    """Skip the check in its own process, and remember what would be served."""
    served = []
    done = subprocess.CompletedProcess([], returncode=0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(lab, "_serve", lambda jupyter: served.append(jupyter) or 0)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return done, served


def test_arguments_of_its_own_and_jupyters(checked, tmp_path, monkeypatch):
    monkeypatch.chdir(make_course(tmp_path / "course"))
    assert lab.main(["--no-browser", "--port", "8899", "--", "--allow-root"]) == 0
    assert lab.main(["--allow-root"]) == 0
    _, (first, second) = checked
    assert f"--ServerApp.root_dir={Path.cwd()}" in first
    assert "--LabApp.default_url=/lab/tree/lessons/00_start_here.ipynb" in first
    assert {"--no-browser", "--ServerApp.port=8899", "--allow-root"} <= set(first)
    assert second[-1] == "--allow-root"
    assert "--no-browser" not in second


def test_a_failed_check_stops_it(checked, tmp_path, monkeypatch):
    monkeypatch.chdir(make_course(tmp_path / "course"))
    done, served = checked
    done.returncode = 1
    assert lab.main([]) == 1
    assert served == []


def test_check_only_serves_nothing(checked, tmp_path, monkeypatch):
    monkeypatch.chdir(make_course(tmp_path / "course"))
    assert lab.main(["--check-only"]) == 0
    assert checked[1] == []


def test_a_search_path_that_is_set_is_kept_behind_ours(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")
    ours, theirs = lab.environment(tmp_path)["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert (Path(ours) / "labconfig" / "default_setting_overrides.json").is_file()
    assert theirs == "/theirs"


# --- the real thing


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """JupyterLab, started by `mptutor lab` for a user with an empty home: (url, home, screen)."""
    root = make_course(tmp_path_factory.mktemp("lab") / "course")
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "HOME": str(home), "USERPROFILE": str(home)}
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "mptutor", "lab", "--no-browser", f"--port={free_port()}"]
    process = subprocess.Popen(
        [*command, "--allow-root"],
        cwd=root / "lessons",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    screen = ""
    for line in process.stdout:  # ends when the server does
        screen += line
        if match := re.search(r"http://127\.0\.0\.1:\d+/\S+", line):
            break
    else:
        pytest.fail(f"JupyterLab did not start:\n{screen}")
    wait_until_it_listens(match[0])
    yield match[0], home, screen
    process.terminate()
    try:
        process.wait(timeout=60)
    finally:  # kernels, which would hold the pipe open
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until_it_listens(url):
    """JupyterLab prints its address shortly before it answers there."""
    for _ in range(100):
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.URLError:
            time.sleep(0.1)
    pytest.fail(f"nothing answers at {url}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def setting(url, plugin, name):
    base, token = url.partition("/lab/tree/")[0], url.partition("token=")[2]
    address = f"{base}/lab/api/settings/@jupyterlab/apputils-extension:{plugin}?token={token}"
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)["schema"]["properties"][name]["default"]


def test_shows_the_check_and_the_address_of_the_first_lesson(served):
    url, _, screen = served
    assert "Ready." in screen
    assert "FP16" in screen
    assert "/lab/tree/lessons/00_start_here.ipynb?token=" in url


def test_jupyterlab_takes_the_courses_defaults(served):
    url, _, _ = served
    assert setting(url, "notification", "fetchNews") == "false"
    assert setting(url, "notification", "checkForUpdates") is False
    assert setting(url, "themes", "adaptive-theme") is True


@pytest.mark.browser
def test_no_pop_up_and_the_systems_colours(served):
    url, home, _ = served
    with launch_chromium() as browser:
        for scheme in ("dark", "light"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.goto(url)
            page.get_by_role("heading", name="Start here").wait_for(timeout=60_000)
            theme = f"JupyterLab {scheme.title()}"
            page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=theme)
            page.wait_for_timeout(1000)  # the pop-up, if any, comes after everything else
            assert page.locator(".Toastify__toast").count() == 0
    written = [path for path in (home / ".jupyter").rglob("*") if path.is_file()]
    # jupyter_core notes, for every Jupyter command, that there is nothing to migrate from 2015.
    assert [path.name for path in written] in ([], ["migrated"])
