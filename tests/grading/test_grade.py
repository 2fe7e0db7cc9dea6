"""From a notebook to its marks."""

import copy
import json

import pytest

from mptutor.checks import tasks_of
from mptutor.checks.judge import judge
from mptutor.checks.probes import try_out
from mptutor.grading.assignment import Assignment
from mptutor.grading.magics import without_magics
from mptutor.grading.result import Result
from tests.grading.exercise01 import CHECKS, SEED, SOLVED, code_cell, exercise, notebook, outcomes


def test_the_solution_earns_all(grade_one):
    result = grade_one(exercise())
    assert outcomes(result) == {"01.1": "right", "01.2": "right", "01.3": "right"}
    assert (result.points, result.max_points) == (7, 7)
    assert result.events == () and result.notes == ()


def test_the_stub_earns_nothing(grade_one):
    stubs = {
        f"s{i}": f"def {name}(*args):\n    raise NotImplementedError"
        for i, name in enumerate(CHECKS.values(), start=1)
    }
    result = grade_one(exercise(**stubs))
    assert set(outcomes(result).values()) == {"unwritten"}
    assert result.points == 0


def test_a_wrong_answer_is_named(grade_one):
    result = grade_one(exercise(s2="def ulp_fp16(x):\n    return 2.0**-10"))
    assert outcomes(result) == {"01.1": "right", "01.2": "wrong", "01.3": "right"}
    task = result.tasks[1]
    assert task.misunderstanding == "ulp everywhere eps" and task.hint and task.reread
    assert task.case and task.got and task.expected
    assert result.points == 5


def test_agrees_with_the_learners_own_check(grade_one):
    """The verdict in the notebook and the grader's are of one mind, right or wrong."""
    wrong = {
        "s1": SOLVED["01-1"].replace("-24", "-25"),
        "s2": SOLVED["01-2"].replace("-14", "-15"),
        "s3": SOLVED["01-3"].replace("(2 - eps) * ", ""),
    }
    for changed in ({}, wrong):
        namespace = {}
        for cell in exercise(**changed)["cells"]:
            if "check" not in cell["source"]:
                exec("import math\n" + cell["source"], namespace)
        result = grade_one(exercise(**changed))
        for task, graded in zip(tasks_of("01"), result.tasks, strict=True):
            cases = task.cases(0)
            answers = [try_out("call", namespace[task.function], c.inputs) for c in cases]
            verdict = judge(task, cases, answers)
            assert verdict.right == (graded.outcome == "right")
            assert verdict.misunderstanding == graded.misunderstanding


def test_answers_known_by_heart_earn_nothing_and_hidden_cases_stay_hidden(grade_one):
    """Right on every visible case, wrong on all others."""
    task = tasks_of("01")[1]
    table = {case.inputs[0]: task.reference(*case.inputs) for case in task.cases(0)}
    source = f"table = {table!r}\ndef ulp_fp16(x):\n    return table.get(x, 12345.0)"
    result = grade_one(exercise(s2=source))
    graded = result.tasks[1]
    assert graded.outcome == "wrong" and graded.points == 0
    assert "Right on the cases of the notebook" in graded.reason
    assert graded.case == graded.got == graded.expected == ""
    assert "12345.0" in graded.for_instructor


def test_one_endless_loop_costs_one_task(grade_one):
    result = grade_one(exercise(s1="while True: pass"))
    assert outcomes(result) == {"01.1": "missing", "01.2": "right", "01.3": "right"}
    assert result.events == ("Cell 2 was stopped after 1 s.",)

    stubborn = """def ulp_fp16(x):
    while True:
        try:
            while True: pass
        except BaseException: pass"""
    result = grade_one(exercise(s2=stubborn))
    assert outcomes(result) == {"01.1": "right", "01.2": "stopped", "01.3": "right"}


@pytest.mark.parametrize("exit", ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)"])
def test_a_cell_that_ends_the_process_costs_that_cell(grade_one, exit):
    result = grade_one(exercise(first=exit))
    assert result.points == 7
    assert result.events == ("Cell 2 ended the whole process.",)


def test_a_function_that_ends_the_process_costs_its_task(grade_one):
    result = grade_one(exercise(s2="import os\ndef ulp_fp16(x):\n    os._exit(0)"))
    assert outcomes(result) == {"01.1": "right", "01.2": "stopped", "01.3": "right"}
    result = grade_one(exercise(s2="def ulp_fp16(x):\n    raise SystemExit"))
    assert outcomes(result) == {"01.1": "right", "01.2": "raised", "01.3": "right"}


def test_a_syntax_error_costs_its_cell(grade_one):
    result = grade_one(exercise(s2="def ulp_fp16(x)\n    return 1"))
    assert outcomes(result) == {"01.1": "right", "01.2": "missing", "01.3": "right"}
    assert "raised SyntaxError" in result.tasks[1].reason
    assert result.events[0].startswith("Cell 4 raised SyntaxError")


def test_deleted_edited_and_doubled_cells(grade_one):
    content = exercise()
    del content["cells"][1:3]
    assert outcomes(grade_one(content))["01.1"] == "missing"

    content = exercise(s1="def decode_fp16(code):\n    return 0")
    for cell in content["cells"]:
        if "check" in json.dumps(cell["metadata"]):
            cell["source"] = "print('all right')"
            cell["metadata"]["nbgrader"]["points"] = 100
    result = grade_one(content)
    assert (result.points, result.max_points) == (4, 7)

    content = exercise()
    content["cells"].insert(3, copy.deepcopy(content["cells"][1]))
    assert grade_one(content).points == 7


def test_metadata_lost(grade_one):
    content = exercise()
    for cell in content["cells"]:
        cell["metadata"] = {}
    assert grade_one(content).points == 7


def test_magics_and_shell_escapes(grade_one):
    first = "%matplotlib inline\n!rm -rf /\nfiles = !ls\nmath.pi?\nx = 100 % 7"
    result = grade_one(exercise(first=first))
    assert result.points == 7 and result.events == ()
    timed = "%%time\n" + SOLVED["01-1"]
    assert grade_one(exercise(s1=timed)).points == 7
    assert grade_one(exercise(first="%%bash\nrm -rf /")).events == ()
    assert grade_one(exercise(first="get_ipython().run_line_magic('pylab', '')")).events == ()


def test_a_percent_sign_is_no_magic():
    text = 's = """\n% not a magic\n"""\nn = 5 % 3'
    assert without_magics(text) == text
    assert without_magics("if x:\n    %pdb on\n    y = 1").splitlines()[1] == "    pass"


def test_thousands_of_cells(grade_one):
    content = exercise()
    content["cells"][1:1] = [code_cell(f"x{i} = {i}") for i in range(3000)]
    assert grade_one(content).points == 7


def test_much_output_in_the_file_and_on_the_way(grade_one):
    content = exercise(first="for _ in range(200_000):\n    print('x' * 100)")
    content["cells"][0]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": ["x" * 100 + "\n"] * 200_000}
    ]
    assert len(json.dumps(content)) > 20_000_000
    assert grade_one(content).points == 7


def test_an_empty_notebook(grade_one):
    result = grade_one(notebook([]))
    assert result.points == 0 and result.max_points == 7
    assert "the notebook is empty" in result.notes


def test_surrogates_and_nulls_in_a_cell(grade_one):
    result = grade_one(exercise(first="x = '\ud800'; raise ValueError(x)"))
    assert result.points == 7 and len(result.events) == 1
    assert grade_one(exercise(first="x = 1\x00")).points == 7


@pytest.mark.parametrize(
    "value",
    [
        "10**5000",
        "float('inf') * 0",
        "[[[[[[[[[[1]]]]]]]]]]",
        "object()",
        "lambda: 1",
        "'x' * 10_000_000",
        "torch.ones(3).to_sparse()",
        "torch.zeros(0, 2**40)",
        "torch.ones(2, dtype=torch.complex64)",
        "{1: 2}",
        "type('int', (int,), {})(3)",
        "float('1e-8')",
        "'\\ud800'",
        "torch.empty(2, device='meta')",
        "torch.quantize_per_tensor(torch.ones(2), 1., 0, torch.qint8)",
    ],
)
def test_whatever_a_function_returns(grade_one, value):
    result = grade_one(exercise(s2=f"import torch\ndef ulp_fp16(x):\n    return {value}"))
    assert outcomes(result)["01.1"] == outcomes(result)["01.3"] == "right"
    assert result.tasks[1].points == 0
    Result.from_json(result.to_json())


def test_a_result_is_the_same_bytes_every_time(grade_one):
    content = exercise(s2="import torch\ndef ulp_fp16(x):\n    return torch.rand(()).item()")
    first, second = grade_one(content), grade_one({**content, "x": 1})
    assert first.tasks == second.tasks
    assert Result.from_json(first.to_json()) == first


def test_an_assignment_knows_its_questions():
    assignment = Assignment.of_lesson("01", SEED)
    assert len(assignment.questions) == 6
    assert [q.hidden for q in assignment.questions] == [False] * 3 + [True] * 3
    by_task = {(q.task, q.hidden): q.cases for q in assignment.questions}
    assert by_task["01.2", False] != by_task["01.2", True]
    with pytest.raises(ValueError, match="seed is 0"):
        Assignment.of_lesson("01", 0)
    key = assignment.key("a", b"x", "10 s")
    assert key == Assignment.of_lesson("01", SEED).key("a", b"x", "10 s")
    assert key != Assignment.of_lesson("01", 1).key("a", b"x", "10 s")
    assert key != assignment.key("a", b"x", "20 s") and key != assignment.key("a", b"y", "10 s")
