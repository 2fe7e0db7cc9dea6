"""Any file is read or answered."""

import json
import os

import pytest

from mptutor.grading.notebook import MAX_FILE_BYTES, Unreadable, parse, read_file
from tests.grading.exercise01 import code_cell, exercise, notebook


def as_bytes(content):
    return json.dumps(content).encode()


def test_an_exercise():
    found = parse(as_bytes(exercise()))
    assert found.lesson == "01"
    assert [cell.number for cell in found.cells] == [1, 2, 4, 6]  # the checks are left out
    assert found.notes == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"hello", "not JSON"),
        (b"%PDF-1.7 \xff\xfe\x00", "no notebook|not text"),
        (b"\xff\xfe\xff\xff", "not text|not JSON"),
        (b"[1, 2]", "no notebook"),
        (b"17", "no notebook"),
        (b"{}", "no cells"),
        (b'{"cells": 3}', "no cells"),
        (b"[" * 100_000, "deeper"),
        (b'{"cells": ' + b"[" * 90_000, "deeper|damaged"),
        (b"[]," * 600_000, "far more parts"),
        (b'{"cells": [' + b"1" * 5000 + b"]}", "damaged"),  # more digits than Python reads
        (as_bytes(exercise())[:700], "breaks off"),
    ],
)
def test_what_is_no_notebook(data, says):
    with pytest.raises(Unreadable, match=says):
        parse(data)


def test_sources_come_in_three_shapes():
    cells = [code_cell("a = 1"), {**code_cell(""), "source": ["b = 1\n", "c = 2"]}]
    old = {"cell_type": "code", "input": "d = 3"}
    assert [c.source for c in parse(as_bytes(notebook(cells))).cells] == ["a = 1", "b = 1\nc = 2"]
    found = parse(as_bytes({"worksheets": [{"cells": [old]}], "nbformat": 3}))
    assert [c.source for c in found.cells] == ["d = 3"]
    assert "format of before 2015" in found.notes[0]


def test_broken_cells_are_left_out():
    cells = [code_cell("a = 1"), None, 7, {"cell_type": "code"}, {"metadata": []}, code_cell("b")]
    cells.append({"cell_type": "code", "source": {"x": 1}, "metadata": {"nbgrader": "no"}})
    found = parse(as_bytes(notebook(cells)))
    assert [c.source for c in found.cells] == ["a = 1", "", "b", ""]
    assert sum("broken" in note for note in found.notes) == 2


def test_a_copied_cell_is_noted():
    content = exercise()
    content["cells"].insert(2, content["cells"][1])
    assert any("more than once" in note for note in parse(as_bytes(content)).notes)


def test_another_kernel_is_noted():
    content = exercise()
    content["metadata"]["kernelspec"] = {"name": "ir", "language": "R"}
    assert "another kernel" in parse(as_bytes(content)).notes[0]


def test_the_lesson_is_found_where_an_editor_dropped_the_marks():
    content = exercise()
    for cell in content["cells"]:
        cell["metadata"] = {}
    assert parse(as_bytes(content)).lesson == "01"
    assert parse(as_bytes(notebook([code_cell("1")]))).lesson is None


def test_byte_order_marks():
    text = json.dumps(exercise())
    for encoding in ("utf-8-sig", "utf-16"):
        assert len(parse(text.encode(encoding)).cells) == 4


def test_links_are_not_followed(tmp_path):
    secret = tmp_path / "solution.ipynb"
    secret.write_bytes(as_bytes(exercise()))
    handed_in = tmp_path / "in"
    (handed_in / "real").mkdir(parents=True)
    (handed_in / "a.ipynb").symlink_to(secret)
    (handed_in / "folder").symlink_to(tmp_path)
    with pytest.raises(Unreadable, match="link"):
        read_file(handed_in / "a.ipynb", handed_in)
    with pytest.raises(Unreadable, match="link"):
        read_file(handed_in / "folder" / "solution.ipynb", handed_in)
    (handed_in / "real" / "b.ipynb").write_bytes(b"{}")
    assert read_file(handed_in / "real" / "b.ipynb", handed_in) == b"{}"


def test_the_folder_handed_in_may_be_a_link_itself(tmp_path):
    (tmp_path / "term").mkdir()
    (tmp_path / "term" / "a.ipynb").write_bytes(b"{}")
    (tmp_path / "now").symlink_to(tmp_path / "term")
    assert read_file(tmp_path / "now" / "a.ipynb", tmp_path / "now") == b"{}"


def test_pipes_devices_and_giants(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    with pytest.raises(Unreadable, match="no ordinary file"):
        read_file(tmp_path / "pipe.ipynb", tmp_path)
    (tmp_path / "dir.ipynb").mkdir()
    with pytest.raises(Unreadable):
        read_file(tmp_path / "dir.ipynb", tmp_path)
    with pytest.raises(Unreadable, match="No such file"):
        read_file(tmp_path / "none.ipynb", tmp_path)
    with open(tmp_path / "giant.ipynb", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(Unreadable, match="MiB"):
        read_file(tmp_path / "giant.ipynb", tmp_path)
