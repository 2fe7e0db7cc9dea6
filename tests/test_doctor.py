"""The doctor on a healthy machine, and on machines with one thing missing each."""

import dataclasses
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from mptutor import course, doctor, hardware, requirements


@pytest.fixture(autouse=True)
def a_course(tmp_path, monkeypatch):
    """A folder that looks like the course, and the current one."""
    (tmp_path / course.FIRST_LESSON).parent.mkdir()
    (tmp_path / course.FIRST_LESSON).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def versions(monkeypatch):
    """What is installed, to be changed by a test; None is missing."""
    changed = {}
    real = metadata.version

    def version(package):
        found = changed.get(package, "real")
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return real(package) if found == "real" else found

    monkeypatch.setattr(metadata, "version", version)
    return changed


def problems():
    return {f.what: f for f in doctor.examine() if f.level != "ok"}


def test_a_healthy_machine(capsys):
    assert doctor.main([]) == 0
    shown = capsys.readouterr().out
    for what in ("Python", "torch", "device", "FP16", "BF16", "packages", "widgets", "course"):
        assert f"\n  {what}" in f"\n{shown}"
    assert shown.endswith("Ready.\n")
    assert len(shown.splitlines()) <= 24  # one screen


def test_json_says_the_same(capsys):
    assert doctor.main(["--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["ready"] is True
    found = {finding["what"]: finding["answer"] for finding in content["findings"]}
    assert found["torch"] == torch.__version__
    assert found["BF16"].partition(":")[0] == hardware.report().support("BF16").status


@pytest.mark.parametrize("package", ["jupyterlab", "ipywidgets", "anywidget", "matplotlib"])
def test_a_missing_package_is_an_error_with_its_command(versions, package, capsys):
    versions[package] = None
    assert doctor.main([]) == 1
    shown = capsys.readouterr().out
    assert f"x {package}" in shown
    assert f'{sys.executable} -m pip install "{package}>=' in shown
    assert "1 problem to solve first" in shown


def test_a_missing_torchvision_is_a_warning(versions, capsys):
    versions["torchvision"] = None
    assert doctor.main([]) == 0
    assert "! torchvision  is not installed." in capsys.readouterr().out


def test_an_old_package_says_what_is_needed(versions):
    versions["jupyterlab"] = "3.6.7"
    found = problems()["jupyterlab"]
    assert found.level == "error"
    assert found.answer == "3.6.7 is too old, the course needs 4.2 or newer."
    assert '--upgrade "jupyterlab>=4.2"' in found.remedy


def test_a_missing_torch_leaves_the_rest_of_the_screen(a_course):
    """In a process of its own, where importing torch fails from the start."""
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from mptutor.doctor import main; sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=a_course, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "x torch        can't be imported" in done.stdout
    assert '-m pip install "torch>=' in done.stdout
    assert "  packages " in done.stdout
    assert str(a_course) in done.stdout


def test_a_broken_torch_is_to_be_reinstalled(monkeypatch):
    def broken():
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(hardware, "report", broken)
    found = problems()["torch"]
    assert found.level == "error"
    assert "libcudart" in found.answer
    assert "--force-reinstall" in found.remedy


def test_an_old_torch(monkeypatch):
    old = dataclasses.replace(hardware.report(), torch="2.2.2")
    monkeypatch.setattr(hardware, "report", lambda: old)
    assert problems()["torch"].level == "error"


def test_a_torchvision_built_for_another_torch(monkeypatch):
    real = metadata.requires
    fake = {"torchvision": ["numpy", "torch==2.1.0"]}
    monkeypatch.setattr(metadata, "requires", lambda name: fake.get(name) or real(name))
    found = problems()["torchvision"]
    assert found.level == "warning"
    assert found.answer.startswith("is built for torch 2.1.0, but torch is")


def test_missing_widget_extensions(monkeypatch, tmp_path):
    import jupyter_core.paths

    monkeypatch.setattr(jupyter_core.paths, "jupyter_path", lambda *_: [str(tmp_path)])
    found = [f for f in doctor.examine() if f.what == "widgets"]
    assert [f.level for f in found] == ["error", "error"]
    assert "jupyterlab_widgets" in found[0].remedy
    assert "anywidget" in found[1].remedy


def test_without_jupyter_the_checks_that_need_it_are_silent(monkeypatch):
    for module in ("jupyter_core.paths", "jupyter_client.kernelspec"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not [f for f in doctor.examine() if f.what in ("widgets", "kernel")]


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        ("python", False),
        ("python3.12", False),
        (str(Path(sys.executable).parent / "python3"), False),
        ("/usr/other/bin/python", True),
    ],
)
def test_a_kernel_of_another_python(monkeypatch, command, warned):
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    monkeypatch.setattr(
        KernelSpecManager, "get_kernel_spec", lambda *_: KernelSpec(argv=[command, "-m", "x"])
    )
    assert ("kernel" in problems()) == warned


def test_no_kernel_at_all(monkeypatch):
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    def none(self, name):
        raise NoSuchKernel(name)

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", none)
    assert problems()["kernel"].level == "error"
    assert "-m ipykernel install --sys-prefix" in problems()["kernel"].remedy


@pytest.mark.parametrize(("cuda", "says"), [(None, "without CUDA"), ("13.0", "finds no GPU")])
def test_a_gpu_that_torch_does_not_use(monkeypatch, cuda, says):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = list(doctor._check_gpu_is_used("cpu"))
    assert [f.level for f in found] == ["warning"]
    assert says in found[0].answer
    assert list(doctor._check_gpu_is_used("cuda")) == []


def test_outside_the_course(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "__file__", str(tmp_path / "site-packages" / "mptutor" / "x.py"))
    (tmp_path / course.FIRST_LESSON).unlink()
    found = problems()["course"]
    assert found.level == "error"
    assert "no lessons/00_start_here.ipynb" in found.answer
    assert "change into the folder" in found.remedy


def test_another_copy_of_the_package(a_course):
    (a_course / "mptutor").mkdir()
    assert "which is not this course's" in problems()["mptutor"].answer


def test_a_full_disk(monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=20 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert problems()["disk"].answer == "Only 20 MB are free where the course is."


def test_requirements_come_from_the_packages_metadata(monkeypatch):
    lines = [
        "torch>=2.9",
        'torchvision; extra == "course"',
        'jupyterlab>=4.2; extra == "course"',
        'nbgrader>=0.9.5; extra == "instructor"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    assert list(map(str, requirements.read_requirements())) == [
        "torch>=2.9",
        "torchvision",
        "jupyterlab>=4.2",
    ]


@pytest.mark.parametrize(
    ("version", "least", "admitted"),
    [
        ("2.14.1+cu130", "2.9", True),
        ("2.9.0", "2.9", True),
        ("2.9", "2.9.1", False),
        ("2.10.0a0+git1", "2.9", True),
        ("4.0.0rc1", "3.9", True),
    ],
)
def test_versions_compare_as_numbers(version, least, admitted):
    assert requirements.Requirement("package", least).admits(version) == admitted


def test_commands_survive_the_shell(monkeypatch):
    monkeypatch.setattr(sys, "executable", r"C:\Program Files\python.exe")
    assert requirements.pip_command("x>=1 --upgrade") == (
        r'"C:\Program Files\python.exe" -m pip install "x>=1" --upgrade'
    )
