"""A small class: notebooks of exercise 01, and one warm parent for all tests."""

import json
from contextlib import nullcontext

import pytest

from mptutor.grading import classroom
from mptutor.grading.backends import NoSandbox, open_backend
from mptutor.grading.classroom import Settings, grade_class
from mptutor.grading.collect import Submission
from mptutor.grading.store import Store
from tests.grading.exercise01 import LIMITS, SEED


@pytest.fixture(scope="session")
def start():
    """Start a student's process in the sandbox."""
    try:
        with open_backend("namespaces", LIMITS) as start:
            with start() as student:
                student.ask({"run": "", "name": "cell 1", "seconds": 1}, 5)
            yield start
    except NoSandbox as why:
        pytest.skip(str(why))


@pytest.fixture
def run_cell(start):
    """Run a cell in a fresh sandbox; return what it raised, as ``Type: message``, or ``None``."""

    def run(source, seconds=1.0):
        with start() as student:
            reply = student.ask({"run": source, "name": "cell 1", "seconds": seconds}, seconds + 1)
        error = reply["error"]
        return error and f"{error['type']}: {error['message']}"

    return run


@pytest.fixture
def grade_one(start, tmp_path, monkeypatch):
    """Grade a notebook, or the bytes of one, by the whole way a submission goes."""
    monkeypatch.setattr(classroom, "open_backend", lambda *args, **kwargs: nullcontext(start))

    def grade(content, name="01_number_formats.ipynb"):
        path = tmp_path / "in" / name
        path.parent.mkdir(exist_ok=True)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(data)
        submission = Submission("ada", "01", path, path.parent)
        settings = Settings(SEED, limits=LIMITS)
        (graded,) = grade_class([submission], settings, Store(tmp_path / "out"))
        return graded.result

    return grade
