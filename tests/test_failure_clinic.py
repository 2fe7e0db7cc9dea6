"""The clinic: its patients are healthy, and the loops of exercise 11 have the faults it names."""

import contextlib
import io
import warnings
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F

import mptutor
from mptutor.checks import find_task
from mptutor.checks.plain import pack, unpack
from mptutor.checks.probes_loops import drive_loop
from mptutor.experiments.clinic import attention, classifier, detector, patient, powers, tell

ROOT = Path(__file__).resolve().parent.parent
PATIENTS = {"B": {"build": attention}, "C": {"adam": True, "lr": 0.01}, "A": {"lr": 1.0}}

pytestmark = pytest.mark.lesson11


@pytest.fixture(scope="module")
def exercise():
    """Run what the exercise gives: everything but the learner's own cells."""
    (path,) = (ROOT / "exercises").glob("11_*/*.ipynb")
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if cell.cell_type == "code" and not grade_id.startswith(("check", "solution")):
            quiet = io.StringIO()
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                exec(cell.source, namespace)
    return namespace


def faults_of(loop, p):
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.suppress(RuntimeError, ValueError), mptutor.audit() as a:
            loop(p)
    return [finding.rule for finding in a.findings if finding.level != "note"]


@pytest.mark.parametrize("letter", "ABCDEF")
def test_the_audit_names_the_causes_that_the_check_expects(exercise, letter):
    task = find_task("11.7")
    faults = faults_of(exercise[f"loop_{letter.lower()}"], patient(**PATIENTS.get(letter, {})))
    expected = task.reference(letter)
    assert task.agree(expected, [f for f in faults if f != "weights_not_finite"]), faults


@pytest.mark.parametrize("letter", "AB")
def test_loops_with_two_faults_have_the_second_when_the_first_is_mended(letter):
    task = find_task(f"11.{'AB'.index(letter) + 1}")
    case = task.cases(0)[0]
    half_mended = task.misunderstandings[0].believes(*case.inputs)
    assert not task.agree(task.reference(*case.inputs), half_mended)
    assert len(half_mended["findings"]) >= 1


@pytest.mark.parametrize(
    ("build", "loss_of"),
    [(classifier, F.cross_entropy), (detector, F.binary_cross_entropy_with_logits)],
)
def test_patients_are_healthy_and_learn(build, loss_of):
    p = patient(build)
    losses = []

    def loop(p):
        for x, y in p.batches:
            p.optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(p.model(x), y)
            p.scaler.scale(loss).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
            losses.append(loss.item())

    assert faults_of(loop, p) == []
    assert losses[-1] < losses[0]


def test_patients_depend_on_their_seed_alone():
    assert patient().weights_hash() == patient().weights_hash() != patient(seed=1).weights_hash()
    assert torch.equal(patient().batches[3][0], patient().batches[3][0])


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_half_right_loops_are_told_apart_on_hidden_cases_too(number, seed):
    task = find_task(f"11.{number}")
    for case in task.cases(seed):
        expected = task.reference(*case.inputs)
        assert unpack(pack(expected)).keys() == expected.keys()
        for belief in task.misunderstandings:
            with contextlib.suppress(RuntimeError, ValueError):
                assert not task.agree(expected, belief.believes(*case.inputs)), belief.name


def test_the_probe_says_what_the_loop_did():
    def loop(p):
        x, y = p.batches[0]
        for factor in (1.0, float("inf"), 1.0):
            p.optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(x), y)
            p.scaler.scale(loss * factor).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
        return [loss]

    told = drive_loop(loop, ("classifier", {"steps": 1, "init_scale": 1024.0}))
    assert told["scales"] == "10 10x 9" and told["steps"] == 2
    assert told["layers in"] == ["float16"]
    assert told["weights"].numel() == sum(w.numel() for w in classifier().parameters())


def test_the_probe_leaves_no_audit_running_when_the_loop_raises(capsys):
    def loop(p):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        drive_loop(loop, ("classifier", {}))
    with mptutor.audit():
        pass
    assert capsys.readouterr().err == ""


def test_losses_and_scales_in_a_line():
    assert tell([1.0, 2.0, float("nan")], every=2) == "1  nan"
    assert powers([65536.0, 65536.0, 0.5]) == "2^16 x2  2^-1"
