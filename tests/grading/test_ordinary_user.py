"""What holds for root holds for an ordinary user: the same tests, run again as one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.grading.ordinary_user import as_ordinary_user, available

ROOT = Path(__file__).resolve().parents[2]
#: The attacks that a shared user id could help, and those that root is held to limits for.
ATTACKS = "fork_bomb or kills_others or leaves_the or looks_into or kernel_settings or memory_of"


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
@pytest.mark.parametrize(
    ("file", "chosen"),
    [("test_sandbox.py", ""), ("test_limits.py", ""), ("test_attacks.py", ATTACKS)],
)
def test_holds_for_an_ordinary_user_too(file, chosen):
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    if not available():
        pytest.skip("becoming another user needs setpriv and unshare (util-linux)")
    scratch = Path(tempfile.mkdtemp(prefix="mptutor-user-"))
    try:
        scratch.chmod(0o777)
        (scratch / "python").mkdir()
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={scratch / 'tmp'}", "-k", chosen]
        command = [sys.executable, "-m", "pytest", *options, f"tests/grading/{file}"]
        done = subprocess.run(
            as_ordinary_user(command, scratch / "python"),
            cwd=ROOT,
            env={**os.environ, "HOME": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
