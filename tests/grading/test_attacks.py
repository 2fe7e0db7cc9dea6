"""The attack bank: what a hostile submission tries, and that it gets nothing for it.

Each file of ``tests/attacks`` is a submission, its first line says what it tries. An attack that
got hold of something raises an error that begins with GAINED. None may gain a point, harm a file,
reach another process, leak a hidden question, or take longer than a submission may.
"""

import ast
import hashlib
import json
import socket
import sqlite3
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from mptutor.checks import tasks_of
from mptutor.grading import classroom
from mptutor.grading.classroom import Settings, grade_class
from mptutor.grading.collect import collect
from mptutor.grading.feedback import feedback_page
from mptutor.grading.store import Store
from mptutor.grading.text import for_terminal
from tests.grading.exercise01 import (
    CHECKS,
    LIMITS,
    SEED,
    SETUP,
    code_cell,
    exercise,
    notebook,
    sleepers,
)

BANK = sorted((Path(__file__).parents[1] / "attacks").glob("*.py"))


def attack_notebook(path, **places):
    """Make the submission: setup, the attack's cells, and checks, but no solution."""
    text = path.read_text()
    for name, place in places.items():
        text = text.replace(f"@{name}@", str(place))
    cells = [code_cell(SETUP)]
    cells += [code_cell(part) for part in text.split("# %%\n")]
    for key, function in CHECKS.items():
        marks = {"grade": True, "locked": True, "points": 3}
        cells.append(code_cell(f"check({key!r}, {function})", f"check-{key}", **marks))
    return notebook(cells)


@pytest.fixture(scope="module")
def server():
    """Serve TCP, UDP and an abstract Unix socket; yields their names and who came."""
    visitors = []
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"\0mptutor-test-{port}")
    unix.listen()

    def wait(receive):
        try:
            while True:
                visitors.append(receive())
        except OSError:
            return

    for receive in (tcp.accept, lambda: udp.recv(100), unix.accept):
        threading.Thread(target=wait, args=(receive,), daemon=True).start()
    yield port, f"mptutor-test-{port}", visitors
    for one in (tcp, udp, unix):
        one.close()


@pytest.fixture
def canary(tmp_path):
    """A folder with a file and a gradebook that no attack may change."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "file.txt").write_text("sing")
    with sqlite3.connect(folder / "gradebook.db") as database:
        database.execute("CREATE TABLE grade (score)")
        database.execute("INSERT INTO grade VALUES (1)")
    return folder


def digest(folder):
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    return json.dumps(found)


@pytest.fixture
def grade_with_a_neighbour(start, tmp_path, monkeypatch):
    """Grade the attack, and after it an honest submission, in one run."""
    monkeypatch.setattr(classroom, "open_backend", lambda *args, **kwargs: nullcontext(start))

    def grade(attack):
        folder = tmp_path / "submitted"
        for student, content in (("attacker", attack), ("honest", exercise())):
            path = folder / student / "01_number_formats" / "01_number_formats.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content))
        store = Store(tmp_path / "out")
        settings = Settings(SEED, limits=LIMITS)
        graded = list(grade_class(collect([folder]), settings, store))
        assert [g.result.student for g in graded] == ["attacker", "honest"]
        return store, *(g.result for g in graded)

    return grade


@pytest.mark.parametrize("path", BANK, ids=lambda path: path.stem)
def test_gains_nothing(path, grade_with_a_neighbour, canary, server, tmp_path, monkeypatch):
    port, abstract, visitors = server
    monkeypatch.setenv("LMS_TOKEN", "a-secret-token")
    places = {"CANARY": canary, "OUT": tmp_path / "out", "PORT": port, "ABSTRACT": abstract}
    places["SECRET"] = "a-secret-token"
    before, began = digest(canary), time.monotonic()
    store, attacker, honest = grade_with_a_neighbour(attack_notebook(path, **places))
    took_s = time.monotonic() - began

    assert attacker.points == 0
    seen_by_the_student = feedback_page(attacker)
    if path.stem not in ("hidden_questions",):
        assert "GAINED" not in attacker.to_json()
    assert not hidden_questions_in(seen_by_the_student)
    assert "<script" not in seen_by_the_student.lower()
    assert for_terminal(attacker.events[0] if attacker.events else "").isprintable()
    assert honest.points == honest.max_points
    assert store.get("01", "attacker", attacker.key) == attacker
    assert digest(canary) == before
    assert visitors == []
    assert not sleepers()
    assert took_s < 2 * LIMITS.submission_s + 10  # and more than once is no limit


def hidden_questions_in(text):
    """Return the hidden inputs of the second task, all of them odd numbers, found in a text."""
    task = tasks_of("01")[1]
    visible = {case.inputs[0] for case in task.cases(0)}
    hidden = {case.inputs[0] for case in task.cases(SEED)} - visible
    assert len(hidden) > 10
    return [x for x in hidden if repr(x) in text]


def test_the_bank_is_as_large_as_promised_and_the_docs_list_all_of_it():
    assert len(BANK) >= 30
    listed = (Path(__file__).parents[2] / "docs" / "grading.md").read_text()
    for path in BANK:
        purpose = ast.get_docstring(ast.parse(path.read_text()))
        assert f"| `{path.stem}` | {purpose} |" in listed
