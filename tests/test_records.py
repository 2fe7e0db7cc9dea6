"""Records: made with tiny experiments here, and on a GPU with the real ones."""

import importlib
import inspect
import json
import os
import pkgutil
from dataclasses import dataclass
from typing import get_type_hints

import pytest
import torch

from mptutor import experiments, records
from mptutor.experiments.result import Result
from mptutor.records import cli
from mptutor.records.machine import Machine, NoGpuError, look_at_gpu
from mptutor.records.record import LAYOUT, Record, make_record, write_atomically
from mptutor.records.registry import EXPERIMENTS, NOT_RECORDED, Experiment

MACHINE = Machine(
    gpu="Test GPU",
    memory_bytes=1,
    compute_capability="0.0",
    driver=None,
    cuda=None,
    cudnn=None,
    torch="2.9.0",
    python="3.10.0",
    system="Linux x86_64",
)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class TinyResult(Result):
    device: str
    loss: float
    finished: bool = True


def run_tiny(*, loss: float = 1.0, device=None, stop=None) -> TinyResult:
    return TinyResult(str(device), loss, finished=not stop())


def run_without_stop(*, device=None) -> TinyResult:
    return TinyResult(str(device), 2.0)


def run_failing(*, device=None) -> TinyResult:
    raise torch.OutOfMemoryError("no memory left")


def run_unwritable(*, device=None) -> TinyResult:
    return TinyResult(str(device), [1.0])


def tiny(function: str, **options) -> Experiment:
    return Experiment(function, f"{__name__}:{function}", options)


TINY = tuple(map(tiny, ("run_tiny", "run_failing", "run_without_stop", "run_unwritable")))


@pytest.fixture
def record():
    return make_record(MACHINE, CPU, experiments=TINY)


def test_results_are_kept_and_a_failure_does_not_spoil_the_rest(record):
    assert list(record.outcomes) == [e.name for e in TINY]
    assert record.outcomes["run_tiny"].result["loss"] == 1.0
    assert record.outcomes["run_without_stop"].result["device"] == "cpu"
    assert record.failures.keys() == {"run_failing", "run_unwritable"}
    assert "no memory left" in record.failures["run_failing"]
    assert "loss" in record.failures["run_unwritable"]


def test_round_trip_is_strict_json(record):
    def refuse(constant):
        raise AssertionError(constant)

    text = record.to_json()
    assert json.loads(text, parse_constant=refuse)["layout"] == LAYOUT
    assert Record.from_json(text) == record


def test_a_result_reads_back_as_its_class():
    nan = make_record(MACHINE, CPU, experiments=[tiny("run_tiny", loss=float("inf"))])
    back = Record.from_json(nan.to_json()).outcomes["run_tiny"].result
    assert TINY[0].read(back) == TinyResult("cpu", float("inf"))


def test_time_is_shared_out_of_what_is_left():
    now = [0.0]
    shares = []

    def say(line):
        if "at most" in line:
            shares.append(int(line.split()[-2]))
            now[0] += 10  # each takes ten seconds

    make_record(MACHINE, CPU, experiments=TINY[:3], seconds=90, clock=lambda: now[0], say=say)
    assert shares == [30, 40, 70]


def test_an_experiment_is_stopped_when_its_time_is_over():
    stopped = make_record(MACHINE, CPU, experiments=TINY[:1], seconds=0)
    assert stopped.outcomes["run_tiny"].result["finished"] is False


# --- what lessons see


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(records, "EXPERIMENTS", TINY)


def test_none_are_shown_where_there_are_none(tmp_path, known):
    assert records.load(tmp_path) == ()
    assert records.recorded("run_tiny", tmp_path) == ()
    assert records.show("run_tiny", tmp_path) is None


def test_records_are_shown_as_what_they_are(tmp_path, record, known):
    (tmp_path / "a.json").write_text(record.to_json())
    shown = records.show("run_tiny", tmp_path)
    page = shown._repr_html_()
    assert "<b>recorded</b> &nbsp;on Test GPU, torch 2.9.0, " in page
    assert "<table>" in page
    assert f"recorded on Test GPU, torch 2.9.0, {record.date[:10]}" in str(shown)
    assert records.show("run_failing", tmp_path) is None
    with pytest.raises(ValueError, match="allowed are run_tiny"):
        records.recorded("else", tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layout": 99}', '{"layout": 1, "machine": {}, "outcomes": {}}']
)
def test_a_broken_file_is_named_and_not_used(text, tmp_path, record):
    (tmp_path / "broken.json").write_text(text)
    (tmp_path / "good.json").write_text(record.to_json())
    with pytest.warns(UserWarning, match=r"broken\.json"):
        assert records.load(tmp_path) == (record,)
    with pytest.raises(ValueError, match=r"broken\.json"):
        records.read(tmp_path / "broken.json")


def test_a_result_of_an_older_course_is_named_and_not_shown(tmp_path, record, known):
    old = json.loads(record.to_json())
    del old["outcomes"]["run_tiny"]["result"]["loss"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.warns(UserWarning, match="loss"):
        assert records.recorded("run_tiny", tmp_path) == ()


def test_records_that_ship_can_be_read():
    for record in records.load():
        for name in record.outcomes:
            records.recorded(name)


# --- writing


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_atomically("old", path)

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_atomically("new", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_gpu_the_command_says_what_is_needed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoGpuError, match="needs an NVIDIA GPU"):
        look_at_gpu()
    assert cli.main(["--out", str(tmp_path / "r.json")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "needs an NVIDIA GPU" in shown.err
    assert "mptutor doctor" in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def pretend_gpu(monkeypatch):
    monkeypatch.setattr(cli, "look_at_gpu", lambda: MACHINE)
    monkeypatch.setattr(cli, "_DEVICE", CPU)


def test_the_command_writes_a_record(monkeypatch, tmp_path, capsys, pretend_gpu):
    monkeypatch.setattr(cli, "EXPERIMENTS", TINY[:1])
    monkeypatch.chdir(tmp_path)
    assert cli.main([]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "test-gpu-torch-2-9-0.json"
    assert records.read(path).outcomes["run_tiny"].failure is None
    assert "Recording on Test GPU" in capsys.readouterr().out


def test_the_command_fails_if_an_experiment_did_or_there_is_nowhere_to_write(
    monkeypatch, tmp_path, capsys, pretend_gpu
):
    monkeypatch.setattr(cli, "EXPERIMENTS", TINY)
    assert cli.main(["--out", str(tmp_path / "r.json")]) == 1
    assert cli.main(["--out", str(tmp_path / "nowhere" / "r.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


# --- the registry


def test_every_experiment_is_recorded_or_has_a_reason_not_to_be():
    found = set()
    for module in pkgutil.iter_modules(experiments.__path__, "mptutor.experiments."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.startswith("run_") and getattr(value, "__module__", "") == module.name:
                found.add(f"{module.name}:{name}")
    known = {e.path for e in EXPERIMENTS} | set(NOT_RECORDED)
    assert found == known


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_a_recorded_experiment_takes_its_options_and_gives_a_result(experiment):
    function = experiment.load()
    taken = inspect.signature(function).parameters
    assert set(experiment.options) | {"device"} <= set(taken)
    assert issubclass(get_type_hints(function)["return"], Result)


# --- with a GPU


@pytest.mark.gpu
def test_the_gpu_is_described():
    machine = look_at_gpu()
    assert machine.gpu == torch.cuda.get_device_name()
    assert machine.memory_bytes > 2**30
    assert machine.cuda == torch.version.cuda
    assert machine.compute_capability.count(".") == 1


@pytest.mark.gpu
def test_the_command_records_on_the_gpu(tmp_path):
    out = tmp_path / "r.json"
    assert cli.main(["--out", str(out), "--minutes", "0.5"]) == 0
    record = records.read(out)
    assert record.failures == {}
    assert all(outcome.result["device"] == "cuda" for outcome in record.outcomes.values())
