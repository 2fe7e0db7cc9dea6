"""A class as a whole: nothing stops it, nothing is done twice, shards make the same."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mptutor.grading import backends, classroom, store
from mptutor.grading.cli import main
from mptutor.grading.feedback import feedback_page
from mptutor.grading.merge import merge
from mptutor.grading.report import Progress, grades_csv, table
from mptutor.grading.result import Result, TaskResult
from mptutor.grading.summary import misunderstandings, summary_page
from mptutor.grading.text import for_csv, for_html, for_terminal
from tests.grading.exercise01 import SEED, code_cell, exercise, notebook

NAME = "01_number_formats"
_CODE = "import sys; from mptutor.grading.cli import main; sys.exit(main(sys.argv[1:]))"
CLI = [sys.executable, "-c", _CODE]
CLASS = {
    "ada": exercise(),
    "ben": exercise(s2="def ulp_fp16(x):\n    return 2.0**-10"),
    "cy": exercise(s1="import os; os._exit(0)"),
    "dan": "{broken",
    "eve": notebook([]),
    "fay": exercise(s2="def ulp_fp16(x):\n    return 2.0**-10", s3="1/0"),
    "=cmd|'x'!A1": exercise(),
    "..": exercise(),
    "\x1b[31mred": notebook([code_cell("raise ValueError('<script>\\x1b[2J')")]),
}


@pytest.fixture
def submitted(tmp_path):
    for student, content in CLASS.items():
        text = content if isinstance(content, str) else json.dumps(content)
        if student == "..":  # a file may be called what no folder can
            (tmp_path / "submitted").mkdir(exist_ok=True)
            (tmp_path / "submitted" / f".._{NAME}.ipynb").write_text(text)
            continue
        folder = tmp_path / "submitted" / student / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text(text)
    return tmp_path / "submitted"


@pytest.fixture
def grade_it(start, submitted, tmp_path, monkeypatch):
    """Run the command line on the class, with the warm parent of all tests."""
    monkeypatch.setattr(classroom, "open_backend", lambda *args, **kwargs: nullcontext(start))

    def grade(*more, out="out"):
        code = main([str(submitted), "--seed", str(SEED), "--out", str(tmp_path / out), *more])
        assert code == 0
        return tmp_path / out

    return grade


def files(folder, but=()):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in but
    }


def test_all_are_answered(grade_it, capsys):
    out = grade_it()
    results = {r.student: r for r in store.Store(out).all()}
    assert len(results) == len(CLASS) - 1  # a name that begins with a dot is a hidden file's
    points = {student: result.points for student, result in results.items()}
    assert points["ada"] == 7 and points["ben"] == 5 and points["cy"] == 4
    assert points["dan"] == points["eve"] == 0 and points["fay"] == 3
    assert "breaks off" in results["dan"].reason
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "ada" in printed and "7/7" in printed


def test_two_files_for_one_exercise_are_one_submission(grade_it, submitted):
    """Neither overwrites the other's result: one is graded, the other is noted."""
    (submitted / "ada" / "extra.ipynb").write_text(json.dumps(exercise(s1="1/0")))
    (submitted / "ada" / "readme.txt").write_text("hello")
    results = [r for r in store.Store(grade_it()).all() if r.student == "ada"]
    assert [(r.points, r.notes) for r in results] == [(7, ("not graded: extra.ipynb",))]


def test_a_second_run_grades_nothing_again(grade_it, monkeypatch):
    before = files(grade_it())
    monkeypatch.setattr(classroom, "grade", None)  # would fail if it were called
    assert files(grade_it()) == before


def test_what_has_changed_is_graded_again(grade_it, submitted):
    out = grade_it()
    path = submitted / "ben" / NAME / f"{NAME}.ipynb"
    path.write_text(json.dumps(exercise()))
    grade_it()
    results = {r.student: r.points for r in store.Store(out).all()}
    assert results["ben"] == 7


def test_an_interrupted_run_goes_on(grade_it, monkeypatch, tmp_path):
    real, calls = classroom.grade, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(classroom, "grade", interrupted)
    with pytest.raises(AssertionError):  # exit code 130
        grade_it()
    half = files(tmp_path / "out", but=("run.json",))
    assert half and not any("writing" in name for name in half)
    monkeypatch.setattr(classroom, "grade", real)
    whole = grade_it()
    assert files(whole, but=("costs",)) == files(grade_it(out="other"), but=("costs",))


def test_all_shards_give_the_bytes_of_one_run(grade_it, tmp_path, capsys):
    single = grade_it(out="single")
    shards = [grade_it("--shard", f"{i}/3", out=f"shard{i}") for i in (1, 2, 3)]
    assert main(["merge", *map(str, shards), "--out", str(tmp_path / "merged")]) == 0
    assert files(tmp_path / "merged", but=("costs",)) == files(single, but=("costs",))

    together = tmp_path / "together"  # shards may also share a folder
    for i in (1, 2, 3):
        grade_it("--shard", f"{i}/3", out="together")
    assert main(["merge", str(together), "--out", str(together)]) == 0
    assert files(together, but=("costs",)) == files(single, but=("costs",))


def test_shards_must_ask_the_same(grade_it, tmp_path, capsys):
    one = grade_it("--shard", "1/2", out="one")
    (one / "run.json").write_text('{"seed": 1}')
    two = grade_it("--shard", "2/2", out="two")
    with pytest.raises(ValueError, match="not graded with the same seed"):
        merge([one, two], tmp_path / "merged")
    with pytest.raises(ValueError, match="no results"):
        merge([tmp_path], tmp_path / "merged")


def test_several_at_a_time_give_the_same_bytes(grade_it):
    one = files(grade_it(out="one"), but=("costs",))
    assert files(grade_it("--jobs", "3", out="three"), but=("costs",)) == one


def test_grades_csv(grade_it):
    rows = list(csv.DictReader(io.StringIO((grade_it() / "grades.csv").read_text())))
    ben = {row["task"]: row for row in rows if row["student"] == "ben"}
    assert ben["01.1"]["points"] == "3" and ben["01.2"]["outcome"] == "wrong"
    assert ben["01.2"]["misunderstanding"] == "ulp everywhere eps"
    assert not any(
        cell.startswith(("=", "+", "@", "\x1b")) for row in rows for cell in row.values()
    )


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.urls = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.urls += [value for name, value in attrs if name in ("src", "href", "action")]


@pytest.mark.parametrize("page", ["feedback", "summary"])
def test_pages_are_offline_and_inert(grade_it, page):
    out = grade_it()
    paths = out.glob("feedback/01/*.html") if page == "feedback" else [out / "summary.html"]
    for path in paths:
        text = path.read_text()
        links = Links()
        links.feed(text)
        assert links.urls == [] and "script" not in links.tags
        assert "http" not in text.replace("http-equiv", "")
        assert "default-src 'none'" in text


def test_feedback_tells_what_was_misunderstood(grade_it):
    text = (grade_it() / "feedback" / "01" / "ben.html").read_text()
    assert "5 of 7 points" in text
    assert "expected" in text and "Reread lesson 01" in text
    assert "The distance is the same everywhere" in text


def test_feedback_says_nothing_of_the_instructors():
    task = TaskResult("01.1", "f", "wrong", 0, 1, "Wrong.", for_instructor="hidden case 0.1234")
    assert "0.1234" not in feedback_page(Result("ada", "01", "x", (task,)))


def test_the_summary_counts(grade_it):
    out = grade_it()
    counted = misunderstandings(store.Store(out).all())
    assert counted[0] == ("01.2", "ulp everywhere eps", 2)
    text = (out / "summary.html").read_text()
    assert "<svg" in text and "ulp everywhere eps" in text
    assert "dan: The file breaks off" in text
    assert "cy: Cell 2 ended the whole process" in text
    assert "0 submissions" in summary_page([])


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a" / "b.json"
    store.write_whole(path, "one")
    monkeypatch.setattr(store.os, "replace", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.write_whole(path, "two")
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    "name", ["..", ".", "../../x", "a/b", "", "é", "\udcff", "x" * 50, "\x1b["]
)
def test_file_names_lead_nowhere_else(tmp_path, name):
    safe = store.file_name(name)
    assert safe and not safe.startswith(".")
    assert (tmp_path / safe).parent == tmp_path and "/" not in safe
    assert re.fullmatch(r"[\w@+=, .%~-]+", safe)


def test_different_names_stay_different():
    names = ["a.b", "a%2Eb", ".a", "%2Ea", "a b", "a/b", "a%2Fb"]
    assert len({store.file_name(name) for name in names}) == len(names)


def test_a_damaged_result_is_graded_again(grade_it):
    out = grade_it()
    before = files(out, but=("costs",))
    for text in ("", "{}", "[]", '{"points": 1}', "{"):
        (out / "results" / "01" / "ada.json").write_text(text)
        assert files(grade_it(), but=("costs",)) == before


def test_text_for_others():
    assert for_terminal("a\x1b[2J\u202eb\n") == "a�[2J�b�"
    assert for_csv("=1+1") == "'=1+1" and for_csv("fine") == "fine"
    assert for_html('<a href="x">\ud800') == "&lt;a href=&quot;x&quot;&gt;�"


def test_progress_shows_how_long_it_takes():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown, hidden = Terminal(), io.StringIO()
    for out in (shown, hidden):
        progress = Progress(3, out)
        progress.step(fresh=False)
        progress.step(fresh=True)
        progress.end()
    assert "2 of 3 graded, 0 s left" in shown.getvalue()
    assert hidden.getvalue() == ""


def test_an_empty_class():
    assert table([]) == "No submissions."
    assert grades_csv([]).count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nothing at nowhere"),
        (["nowhere", "--shard", "1/2"], "--shard needs --seed"),
        (["nowhere", "--timeout", "-1"], "nothing at nowhere|positive"),
        (["merge", "nowhere", "--out", "x"], "no results in nowhere"),
    ],
)
def test_wrong_arguments(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [["--shard", "3/2"], ["--jobs", "0"], ["--seed", "0"]])
def test_arguments_that_argparse_refuses(arguments, capsys):
    with pytest.raises(SystemExit):
        main(["x", *arguments])
    assert "usage" in capsys.readouterr().err


def test_fails_closed_without_namespaces(submitted, tmp_path, capsys, monkeypatch):
    """Where there is no sandbox, nothing is run, and the sentence names the choices."""
    monkeypatch.setattr(backends.sys, "platform", "darwin")
    assert main([str(submitted), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    for choice in ("--backend docker", "podman", "--trust-students", "darwin"):
        assert choice in said


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_fails_closed_where_the_kernel_refuses(submitted, tmp_path):
    """In a user namespace without a mount namespace even root may not build a sandbox."""
    out = tmp_path / "out"
    command = ["unshare", "--user", "--map-root-user", *CLI, str(submitted), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "The kernel refused a sandbox (open_tree /" in done.stderr
    assert "--trust-students" in done.stderr and "Traceback" not in done.stderr
    graded = [r for r in store.Store(out).all() if not r.reason]
    assert graded == []


def test_trusted_students(submitted, tmp_path, capfd):
    out = tmp_path / "out"
    arguments = [str(submitted), "--out", str(out), "--trust-students", "--seed", str(SEED)]
    assert main(arguments) == 0
    points = {r.student: r.points for r in store.Store(out).all()}
    assert points["ada"] == 7 and points["ben"] == 5 and points["cy"] == 4


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_nothing_is_left_of_a_grader_that_is_killed(submitted, tmp_path):
    """Not even SIGKILL leaves a student's process behind, and the next run goes on."""
    for path in submitted.rglob("*.ipynb"):
        path.unlink()
    slow = exercise(first="import time; time.sleep(100 * 3.14159)")
    (submitted / "ada" / NAME / f"{NAME}.ipynb").write_text(json.dumps(slow))
    command = [*CLI, str(submitted / "ada"), "--out", str(tmp_path / "out")]
    grader = subprocess.Popen([*command, "--timeout", "60"], stderr=subprocess.PIPE)
    children = []
    for _ in range(600):
        children = descendants(grader.pid)
        if len(children) >= 3 or grader.poll() is not None:
            break
        time.sleep(0.1)
    if grader.poll() is not None:
        pytest.skip(grader.stderr.read().decode())
    assert len(children) >= 3  # the warm parent, a supervisor, a student
    os.kill(grader.pid, signal.SIGKILL)
    grader.wait()
    for _ in range(100):
        left = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
        if not left:
            break
        time.sleep(0.1)
    assert not left


def descendants(pid):
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child), *descendants(child)]
    return found
