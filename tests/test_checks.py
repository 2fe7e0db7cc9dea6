"""The machinery of the checks: plain values, probes, the judge, and checking saved notebooks."""

import json
import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mptutor.checks.progress as progress_module
from mptutor.checks import check, find_task, tasks_of
from mptutor.checks.judge import judge
from mptutor.checks.notebook import CheckFailed
from mptutor.checks.plain import MAX_DEPTH, Unknown, pack, unpack
from mptutor.checks.probes import try_out
from mptutor.checks.progress import Progress, TaskProgress, progress
from mptutor.checks.run import NotebookError, check_notebook, is_untouched, main
from mptutor.checks.task import Case, Misunderstanding, Task, same

ROOT = Path(__file__).resolve().parent.parent

# -- plain values --------------------------------------------------------------------------------

numbers = st.one_of(st.integers(), st.floats(allow_nan=True), st.booleans(), st.none(), st.text())
plain_values = st.recursive(
    numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(plain_values)
def test_plain_values_survive_the_journey_through_json(value):
    try:
        sent = pack(value)
    except ValueError as error:
        assert "nested deeper" in str(error)
        return
    assert same(value, unpack(json.loads(json.dumps(sent))))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors_survive_bit_for_bit(dtype, shape):
    x = torch.randn(shape).to(dtype)
    back = unpack(json.loads(json.dumps(pack(x))))
    assert back.dtype == dtype and back.shape == x.shape and torch.equal(back, x)


def test_numpy_counts_as_numbers_and_tensors():
    assert unpack(pack(np.float32(0.5))) == 0.5
    assert torch.equal(unpack(pack(np.arange(3.0))), torch.arange(3.0, dtype=torch.float64))


class AlwaysEqual(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class Tensor(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "forged", [AlwaysEqual(1.0), Tensor(), object(), lambda: 0, {1: 2}, {"a": AlwaysEqual()}]
)
def test_a_forged_object_arrives_as_unknown(forged):
    back = unpack(pack(forged))
    inner = back["a"] if isinstance(back, dict) else back
    assert isinstance(inner, Unknown) and not same(1.0, inner)


def test_answers_that_are_too_deep_or_too_large_are_refused():
    deep = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    for answer in (deep, "x" * 10**7, [0] * 10**5, torch.zeros(10**7)):
        with pytest.raises(ValueError, match=r"deeper|too large"):
            pack(answer)


@pytest.mark.parametrize(
    "forged",
    [
        3,
        [1],
        {"int": 3},
        {"int": "1", "float": "2"},
        {"tensor": {"dtype": "float32", "shape": [2], "bytes": "AAAA"}},
        {"tensor": {"dtype": "float32", "shape": [-1], "bytes": ""}},
        {"pickle": "gASVAAAA"},
        {"dtype": ["float32"]},
        {"tensor": {"dtype": ["float32"], "shape": [0], "bytes": ""}},
        {"list": {"0": 1}},
    ],
)
def test_what_pack_never_writes_is_refused(forged):
    with pytest.raises(ValueError):
        unpack(forged)


# -- comparing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "got", "verdict"),
    [
        (1.0, 1, True),
        (1.0, torch.tensor(1.0), True),
        (1.0, torch.tensor([1.0, 1.0]), False),
        (1.0, True, False),
        (0.0, -0.0, False),
        (-0.0, -0.0, True),
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        (math.inf, math.inf, True),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).half(), False),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), False),
        (torch.tensor([1]), torch.tensor([1]), True),
        ([1, 2], [1, 2], True),
        ([1, 2], [1], False),
        ({"a": 1.0}, {"a": 1}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
        (True, 1, False),
        ("a", "a", True),
        (None, 0, False),
        (1.0, 10**400, False),
        (math.nan, 10**400, False),
    ],
)
def test_same(expected, got, verdict):
    assert same(expected, got) is verdict


# -- the judge -----------------------------------------------------------------------------------

DOUBLE = Task(
    id="99.1",
    function="double",
    reference=lambda x: 2 * x,
    cases=lambda seed: [Case(f"x = {x}", (x,)) for x in (1, 2, 3, 4)],
    misunderstandings=(
        Misunderstanding("squares", "You square.", lambda x: x * x, "Doubling"),
        Misunderstanding("adds one", "You add one.", lambda x: x + 1, "Doubling"),
        Misunderstanding(
            "needs large x", "It fails for 1.", lambda x: 2 * x // (x > 1), "Doubling"
        ),
    ),
)


def verdict_on(written):
    cases = DOUBLE.cases(0)
    return judge(DOUBLE, cases, [try_out("call", written, case.inputs) for case in cases])


def test_a_right_answer():
    verdict = verdict_on(lambda x: x + x)
    assert verdict.right and (verdict.cases_right, verdict.cases_total) == (4, 4)


def test_a_wrong_answer_shows_its_first_case_and_its_belief():
    verdict = verdict_on(lambda x: x**2)
    assert (verdict.outcome, verdict.misunderstanding) == ("wrong", "squares")
    assert (verdict.case, verdict.got, verdict.expected) == ("x = 1", "1", "2")
    assert (verdict.hint, verdict.reread) == ("You square.", "Doubling")


def test_an_answer_that_fits_no_belief_gets_none():
    assert verdict_on(lambda x: -7).misunderstanding is None


def test_an_exception_can_show_a_belief_too():
    verdict = verdict_on(lambda x: 2 * x // (x > 1))
    assert (verdict.outcome, verdict.misunderstanding) == ("raised", "needs large x")
    assert "ZeroDivisionError" in verdict.got


def test_the_line_shown_is_the_learners_and_not_that_of_a_library():
    def hooks_what_has_no_gradient(x):
        return torch.ones(2).register_hook(print)

    hint = "It was raised at `return torch.ones(2).register_hook(print)`."
    assert verdict_on(hooks_what_has_no_gradient).hint == hint
    assert verdict_on(lambda: 1).hint == ""  # called with too many inputs, by us


def test_nothing_returned_is_said_plainly():
    assert "returned None" in verdict_on(lambda x: None).hint


def test_unwritten_is_not_wrong():
    def stub(x):
        raise NotImplementedError("exercise")

    assert verdict_on(stub).outcome == "unwritten"


def test_an_answer_too_long_to_print_is_shown_all_the_same():
    assert verdict_on(lambda x: 10**5000).got == "a int too long to print"


@pytest.mark.parametrize(
    "answers", [[], [{"value": None}] * 3, [{"value": 3}] * 4, [{"error": "x"}] * 4, ["x"] * 4]
)
def test_the_judge_refuses_what_no_probe_writes(answers):
    with pytest.raises(ValueError):
        judge(DOUBLE, DOUBLE.cases(0), answers)


def test_a_function_that_spoils_its_inputs_spoils_them_for_itself_alone():
    x = torch.ones(2)
    assert try_out("call", lambda t: t.mul_(2), (x,)) == {"value": pack(torch.full((2,), 2.0))}
    assert torch.equal(x, torch.ones(2))


# -- the check cell ------------------------------------------------------------------------------


def test_a_failing_check_reads_as_text_and_not_as_a_traceback():
    with pytest.raises(CheckFailed) as failed:
        check("01.1", lambda code: 0.0)
    (shown,) = failed.value._render_traceback_()
    assert "input     code 0x3C00, one" in shown and "expected  1.0" in shown
    assert "Traceback" not in shown


def test_an_unknown_task_is_refused_by_name():
    with pytest.raises(ValueError, match=r"task_id is '77.1'; allowed are 01.1"):
        check("77.1", print)
    with pytest.raises(ValueError, match=r"lesson is '77'"):
        tasks_of("77")


def test_find_task():
    assert find_task("01.2").function == "ulp_fp16"


# -- saved notebooks -----------------------------------------------------------------------------


def exercise(tmp_path, *sources):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    check_cell = nbformat.v4.new_code_cell('check("01.2", ulp_fp16)')
    check_cell.metadata["nbgrader"] = {"grade_id": "check-01-2"}
    notebook.cells.append(check_cell)
    path = tmp_path / "mine.ipynb"
    nbformat.write(notebook, path)
    return path


RIGHT = """def ulp_fp16(x):
    import math
    return 2.0 ** (max(math.frexp(x)[1] - 1, -14) - 10) if x else 2.0**-24"""


@pytest.mark.parametrize(
    "before", ["1 / 0", "%time 1 + 1", "!true", "def broken(:", "raise SystemExit", "print(1)"]
)
def test_a_cell_that_fails_costs_only_itself(tmp_path, before):
    (verdict,) = check_notebook(exercise(tmp_path, before, RIGHT))
    assert verdict.right


def test_a_function_that_is_not_there_is_unwritten(tmp_path):
    (verdict,) = check_notebook(exercise(tmp_path, "pass"))
    assert verdict.outcome == "unwritten"


def test_the_command_tells_right_from_wrong(tmp_path, capsys):
    assert main([str(exercise(tmp_path, RIGHT))]) == 0
    assert main([str(exercise(tmp_path, "ulp_fp16 = abs")), "--json"]) == 1
    printed = capsys.readouterr().out
    assert "right, in all" in printed and '"outcome": "wrong"' in printed


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 3}', '{"cells": []}', "not json"])
def test_a_file_that_is_no_exercise_is_answered(tmp_path, text, capsys):
    path = tmp_path / "broken.ipynb"
    path.write_text(text)
    with pytest.raises(NotebookError, match=r"broken\.ipynb"):
        check_notebook(path)
    assert main([str(path)]) == 2
    assert "broken.ipynb" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere.ipynb")]) == 2


def test_progress_is_read_off_the_saved_notebooks(tmp_path):
    folder = tmp_path / "exercises" / "01_number_formats"
    folder.mkdir(parents=True)
    exercise(folder, RIGHT).rename(folder / "01_number_formats.ipynb")
    outcomes = {task.task: task.outcome for task in progress(tmp_path).tasks}
    assert outcomes == {"01.1": "unreadable", "01.2": "right", "01.3": "unreadable"}


def test_untouched_exercises_are_not_run(monkeypatch):
    monkeypatch.setattr(progress_module, "_start", lambda path: pytest.fail(f"ran {path}"))
    outcomes = {task.outcome for task in progress(ROOT).tasks}
    assert outcomes == {"unwritten"}


def test_a_solved_exercise_is_not_untouched():
    for kind, untouched in (("exercises", True), ("solutions", False)):
        for path in (ROOT / kind).glob("*/*.ipynb"):
            assert is_untouched(path) is untouched


def test_progress_shows_itself():
    one = Progress((TaskProgress("01.1", "f<g", "right"), TaskProgress("01.2", "h", "wrong")))
    assert "1 of 2 tasks right" in str(one)
    assert "f&lt;g" in one._repr_html_() and "not right yet" in one._repr_html_()
