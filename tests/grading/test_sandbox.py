"""What a student's process can see, and what it cannot do. The kernel is the oracle."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import mptutor
from mptutor.grading.backends import NoSandbox, WarmParent
from mptutor.grading.kit import kit, view_of
from mptutor.grading.sandbox_linux import _shown_by_no_other
from mptutor.grading.seccomp import build
from mptutor.grading.supervise import Order
from tests.grading.exercise01 import LIMITS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
REPO = Path(mptutor.__file__).resolve().parents[1]


def test_a_cell_runs(run_cell):
    assert run_cell("x = 1 + 1; assert x == 2") is None
    assert run_cell("1 / 0") == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "path",
    [
        REPO / "source",
        REPO / "solutions",
        REPO / "tests",
        Path(mptutor.__file__).parent / "checks" / "lesson01.py",
        Path(__file__),
        Path("/etc/shadow"),
        Path("/var"),
        Path("/sys"),
        Path("/home"),
    ],
    ids=str,
)
def test_is_not_there(run_cell, path):
    assert run_cell(f"import os; assert not os.path.exists({str(path)!r})") is None


def test_no_answer_can_be_imported(run_cell):
    for module in ("lesson01", "judge", "notebook", "task"):
        assert "ImportError" in run_cell(f"from mptutor.checks import {module}")
    assert "ModuleNotFoundError" in run_cell("import mptutor.grading.grade")
    loaded = "import sys; bad = [m for m in sys.modules if 'lesson' in m or 'judge' in m]"
    assert run_cell(f"{loaded}; assert not bad, bad") is None


def test_the_rest_of_the_package_is_there(run_cell):
    assert run_cell("import mptutor; assert mptutor.FP16.max == 65504.0") is None
    assert run_cell("from mptutor.checks import check; check('01.1', None)") is None


def test_sees_no_other_process(run_cell):
    assert run_cell("import os; assert os.getpid() == 1, os.getpid()") is None
    count = "import os; n = [p for p in os.listdir('/proc') if p.isdigit()]; assert n == ['1'], n"
    assert run_cell(count) is None


def test_has_no_rights(run_cell):
    source = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    assert int(status[name], 16) == 0, name
assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2"
import os
assert os.getuid() != 0
"""
    assert run_cell(source) is None


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/proc/x", sys.prefix + "/x", "/dev/x", "/etc/x"])
def test_cannot_write(run_cell, path):
    assert "Error" in run_cell(f"open({path!r}, 'w')")


def test_can_write_to_tmp_and_finds_it_empty(run_cell):
    assert run_cell("open('/tmp/note', 'w').write('x')") is None
    assert run_cell("import os; assert not os.path.exists('/tmp/note')") is None


def test_no_network(run_cell):
    assert "unreachable" in run_cell("import socket; socket.socket().connect(('127.0.0.1', 9))")
    for family in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
        message = run_cell(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
        assert "Operation not permitted" in message


@pytest.mark.parametrize(
    "name", ["unshare(0x10000000)", "mount(0, 0, 0, 0, 0)", "ptrace(0, 0, 0, 0)"]
)
def test_refused_calls(run_cell, name):
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.{name} == -1
assert ctypes.get_errno() == 1, ctypes.get_errno()
"""
    assert run_cell(source) is None


def test_the_environment_is_clean(run_cell, monkeypatch):
    allowed = {"PATH", "HOME", "USER", "LANG", "MPLBACKEND", "MPLCONFIGDIR", "LC_CTYPE"}
    allowed |= {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH"}
    allowed |= {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE"}
    allowed |= {
        "PYTHONHASHSEED",
        "KMP_DUPLICATE_LIB_OK",
        "KMP_INIT_AT_FORK",
        "TORCHINDUCTOR_CACHE_DIR",
    }
    source = f"import os; extra = set(os.environ) - {allowed!r}; assert not extra, extra"
    assert run_cell(source) is None


def test_no_other_submission_is_left_in_memory(start):
    """What the one student hands in is in no page that the next one is born with."""
    mark = "remember-" + "me" * 8
    with start() as student:
        student.ask({"run": f"x = {mark!r}", "name": "cell 1", "seconds": 1}, 2)
    source = f"""
mark = bytes(reversed({mark[::-1].encode()!r}))
found = 0
with open("/proc/self/mem", "rb") as memory:
    for line in open("/proc/self/maps"):
        bounds, permissions, *rest = line.split()
        if "rw" in permissions and (len(rest) < 4 or rest[3] == "[heap]"):
            first, last = (int(x, 16) for x in bounds.split("-"))
            memory.seek(first)
            try:
                found += memory.read(last - first).count(mark)
            except OSError:
                pass
assert found <= 2, found
"""
    with start() as student:
        reply = student.ask({"run": source, "name": "cell 1", "seconds": 5}, 6)
    assert reply["error"] is None


def test_visible_paths_bring_along_what_lies_below_down_to_hidden_ones():
    visible = ["/usr", "/usr/lib/python3", "/usr/src/app/.venv", "/opt/x", "/tmp/kit"]
    kept = _shown_by_no_other(visible, ["/usr/src/app"])
    assert set(kept) == {"/usr", "/opt/x", "/tmp/kit", "/usr/src/app/.venv"}
    assert kept.index("/usr") < kept.index("/usr/src/app/.venv")


def test_an_installed_package_is_hidden_inside_what_is_visible():
    """Installed, the package lies among the libraries, which the sandbox has to show."""
    libraries = Path(tempfile.mkdtemp(prefix="mptutor-libraries-"))
    libraries.chmod(0o755)
    installed, environment = libraries / "mptutor", libraries / "mptutor" / ".venv"
    for place, text in ((libraries, "other"), (installed, "answers"), (environment, "python")):
        place.mkdir(exist_ok=True)
        (place / "module.py").write_text(text)
    source = f"""
import os
assert open("{libraries}/module.py").read() == "other"
assert not os.path.exists("{installed}/module.py")
assert open("{environment}/module.py").read() == "python"
for path in ("{libraries}/x", "{installed}/x"):
    try:
        open(path, "w")
    except OSError:
        continue
    raise RuntimeError(path)
"""
    with kit() as folder:
        view = view_of(folder)
        visible = (*view.visible, str(libraries), str(environment))
        order = Order(LIMITS, visible=visible, hidden=(*view.hidden, str(installed)))
        parent = WarmParent(folder, order, [])
        try:
            student = parent.start()
            reply = student.ask({"run": source, "name": "cell 1", "seconds": 1}, 5)
            student.end()
        except NoSandbox as why:
            pytest.skip(str(why))
        finally:
            parent.close()
            shutil.rmtree(libraries)
    assert reply["error"] is None


def test_the_filter_is_well_formed():
    for machine in ("x86_64", "aarch64"):
        code = build(machine)
        assert len(code) % 8 == 0
        steps = [code[i : i + 8] for i in range(0, len(code), 8)]
        for at, step in enumerate(steps):
            if step[0] in (0x15, 0x35, 0x45):  # jumps land inside the program
                assert at + 1 + max(step[2], step[3]) < len(steps)
        assert steps[-1] == bytes([0x06, 0, 0, 0, 0, 0, 0xFF, 0x7F])
    with pytest.raises(OSError, match="riscv64"):
        build("riscv64")
