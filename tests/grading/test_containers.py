"""The container backend: the command it gives, and, where there is an engine, the real thing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mptutor.grading.backends import Engine, NoSandbox, open_backend
from mptutor.grading.classroom import Settings, grade_class
from mptutor.grading.collect import Submission
from mptutor.grading.store import Store
from tests.grading.exercise01 import LIMITS, SEED, exercise, outcomes

IMAGE = "localhost/mptutor-test"


def test_the_command():
    command = Engine("docker", "img", ("--gpus=all",)).command("n", Path("/some/kit"), LIMITS)
    assert command[:3] == ["docker", "run", "--rm"]
    for option in (
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--user=65534:65534",
        "--security-opt=no-new-privileges",
        f"--memory={LIMITS.memory_bytes + 2**30}",
        f"--memory-swap={LIMITS.memory_bytes + 2**30}",
        f"--pids-limit={LIMITS.processes}",
        "--volume=/some/kit:/kit:ro",
        "--env=PYTHONPATH=/kit",
        "--gpus=all",
    ):
        assert option in command
    assert command[-3:] == ["img", "-m", "mptutor.grading.child"]
    assert not any(text.startswith("--env=PATH=") for text in command)


def test_an_engine_that_is_not_there(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with (
        pytest.raises(NoSandbox, match="no docker on this machine"),
        open_backend("docker", LIMITS),
    ):
        pass


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A working engine, an image with nothing in it, and the options that lend it this Python."""
    lent = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix}
    lent.add(str(Path(torch.__file__).parents[1]))
    options = [f"--volume={path}:{path}:ro" for path in sorted(lent) if Path(path).exists()]
    options += [f"--env=PATH={Path(sys.executable).parent}"]
    folder = tmp_path_factory.mktemp("image")
    (folder / "etc").mkdir()
    archive = shutil.make_archive(str(folder / "image"), "tar", folder, "etc")
    for program in ("podman", "docker"):
        if shutil.which(program) is None:
            continue
        made = subprocess.run([program, "import", archive, IMAGE], capture_output=True)
        tried = [
            program,
            "run",
            "--rm",
            "--ulimit=nofile=99:99",
            "--ulimit=nproc=999:999",
            *options,
            IMAGE,
            "python",
            "-V",
        ]
        if made.returncode == 0 and subprocess.run(tried, capture_output=True).returncode == 0:
            yield Engine(program, IMAGE, tuple(options))
            subprocess.run([program, "rmi", "--force", IMAGE], capture_output=True)
            return
    pytest.skip("neither podman nor docker runs a container here")


def test_grades_in_containers(engine, tmp_path):
    content = exercise(
        first="import socket; socket.create_connection(('127.0.0.1', 9))",
        s2="import os\ndef ulp_fp16(x):\n    os._exit(0)",
    )
    path = tmp_path / "ada.ipynb"
    path.write_text(json.dumps(content))
    settings = Settings(
        SEED,
        backend=engine.program,
        limits=LIMITS,
        image=engine.image,
        container_options=engine.options,
    )
    submission = Submission("ada", "01", path, tmp_path)
    (graded,) = grade_class([submission], settings, Store(tmp_path / "out"))
    assert outcomes(graded.result) == {"01.1": "right", "01.2": "stopped", "01.3": "right"}
    assert (
        "Cell 2 raised OSError" in graded.result.events[0] or "Refused" in graded.result.events[0]
    )


def test_an_image_that_is_not_there(engine):
    with (
        pytest.raises(NoSandbox, match="ran no container"),
        open_backend(engine.program, LIMITS, image="localhost/no-such-image") as start,
        start(),
    ):
        pass


def test_an_image_that_holds_the_answers(engine, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "mptutor").mkdir()
    options = (f"--volume={tmp_path}:/extra:ro", "--env=PYTHONPATH=/kit:/extra")
    backend = open_backend(
        engine.program,
        LIMITS,
        image=engine.image,
        container_options=(*engine.options, *options),
    )
    with pytest.raises(NoSandbox, match="could read the answers"), backend as start, start():
        pass
