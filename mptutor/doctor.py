"""``mptutor doctor``: is this machine ready for the course, and if not, what to type.

One screen: versions, the device, which formats are native on it, and everything that tends to go
wrong between ``pip install`` and the first lesson.  Each problem comes with its remedy.  An *error*
keeps the course from working and makes the exit code 1; a *warning* costs something, but not that.

Apart from torch nothing is imported to be checked: versions come from the installed packages'
metadata, so a broken package can't break the doctor.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from mptutor.course import CourseNotFoundError, find_course
from mptutor.requirements import (
    installed_version,
    pip_command,
    quoted,
    read_requirements,
    release,
)

#: JupyterLab extensions without which no widget draws, and the packages that bring them.
_WIDGET_EXTENSIONS = {
    "@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets",
    "anywidget": "anywidget",
}
#: Packages of the course that some lessons can do without.
_OPTIONAL = ("torchvision",)
_ENOUGH_DISK_MB = 500


@dataclass(frozen=True)
class Finding:
    """One line of the screen.

    Attributes
    ----------
    what, answer
        Such as ``"torch"`` and ``"2.14.1"``.
    level
        ``"ok"``, ``"warning"`` or ``"error"``.
    remedy
        For the latter two: a command, or what else to do.
    """

    what: str
    answer: str
    level: str = "ok"
    remedy: str | None = None


def main(argv: list[str]) -> int:
    """Print the report; return 1 if something keeps the course from working."""
    parser = argparse.ArgumentParser(prog="mptutor doctor", description="Is this machine ready?")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    arguments = parser.parse_args(argv)
    findings = examine()
    print(_to_json(findings) if arguments.json else render(findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0


def examine() -> list[Finding]:
    """Look at everything, in the order in which it is shown."""
    return [
        *_check_torch(),
        *_check_packages(),
        *_check_widget_extensions(),
        *_check_kernel(),
        *_check_course(),
    ]


def render(findings: list[Finding]) -> str:
    """Return the findings as one screen of text."""
    width = min(shutil.get_terminal_size().columns, 100)
    marks = {"ok": " ", "warning": "!", "error": "x"}
    lines = []
    for finding in findings:
        head = f"{marks[finding.level]} {finding.what:12} "
        lines.append(_wrapped(finding.answer, head, width))
        if finding.remedy:
            # Not wrapped: it is there to be copied.
            lines.append(f"{'':15}-> {finding.remedy}")
    return "\n".join([*lines, "", _verdict(findings)])


def _wrapped(text: str, head: str, width: int) -> str:
    indent = " " * len(head)
    # A path broken in two cannot be copied.
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(findings: list[Finding]) -> str:
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if errors:
        return f"{_counted(errors, 'problem')} to solve first (x); the arrows say how."
    if warnings:
        return f"Ready. {_counted(warnings, 'thing')} could be better (!); the arrows say how."
    return "Ready."


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _to_json(findings: list[Finding]) -> str:
    ready = all(finding.level != "error" for finding in findings)
    content = {"ready": ready, "findings": [asdict(finding) for finding in findings]}
    return json.dumps(content, indent=2)


def _check_torch() -> Iterator[Finding]:
    requirement = next(r for r in read_requirements() if r.package == "torch")
    try:
        from mptutor import hardware

        found = hardware.report()
    except ImportError as error:
        yield Finding(
            "torch", f"can't be imported: {error}", "error", pip_command(str(requirement))
        )
        return
    except OSError as error:  # a library that torch needs is missing or of another version
        remedy = pip_command(f"--force-reinstall {requirement}")
        yield Finding("torch", f"is broken: {error}", "error", remedy)
        return
    for what, answer in found.facts():
        if what == "torch" and not requirement.admits(found.torch):
            answer = f"{answer} is too old, the course needs {requirement.least} or newer"
            yield Finding(what, answer, "error", pip_command(f"--upgrade {requirement}"))
        else:
            yield Finding(what, answer)
    yield from _check_gpu_is_used(found.device)
    for support in found.formats:
        yield Finding(support.name, f"{support.status}: {support.sentence}")


def _check_gpu_is_used(device: str) -> Iterator[Finding]:
    """Warn of an NVIDIA GPU that torch can't use; pip on Windows installs a torch without CUDA."""
    if device == "cuda" or shutil.which("nvidia-smi") is None:
        return
    import torch

    if torch.version.cuda is None:
        yield Finding(
            "GPU",
            "This computer has NVIDIA's driver, but this torch is built without CUDA.",
            "warning",
            "choose CUDA on pytorch.org/get-started/locally and run the command shown there",
        )
    else:
        yield Finding(
            "GPU",
            f"This computer has NVIDIA's driver, but torch finds no GPU for its CUDA "
            f"{torch.version.cuda}.",
            "warning",
            "see whether nvidia-smi shows a GPU; if it does, update the driver",
        )


def _check_packages() -> Iterator[Finding]:
    versions = []
    for requirement in read_requirements():
        name, version = requirement.package, installed_version(requirement.package)
        level = "warning" if name in _OPTIONAL else "error"
        if name == "torch":
            continue
        if version is None:
            yield Finding(name, "is not installed.", level, pip_command(str(requirement)))
        elif not requirement.admits(version):
            answer = f"{version} is too old, the course needs {requirement.least} or newer."
            yield Finding(name, answer, level, pip_command(f"--upgrade {requirement}"))
        else:
            versions.append(f"{name} {version}")
    if versions:
        yield Finding("packages", ", ".join(versions))
    yield from _check_torchvision_fits()


def _check_torchvision_fits() -> Iterator[Finding]:
    """Warn of a torchvision that was built for another torch: importing it would fail."""
    torch_version = installed_version("torch")
    if torch_version is None or installed_version("torchvision") is None:
        return
    for line in metadata.requires("torchvision") or ():
        match = re.match(r"torch\s*\(?==([\d.]+)", line)
        if match and release(match[1]) != release(torch_version):
            yield Finding(
                "torchvision",
                f"is built for torch {match[1]}, but torch is {torch_version}.",
                "warning",
                pip_command("--upgrade torch torchvision"),
            )


def _check_widget_extensions() -> Iterator[Finding]:
    """See whether JupyterLab will find the JavaScript half of the widgets."""
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return  # JupyterLab is missing, and has been reported
    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    missing = [
        (extension, package)
        for extension, package in _WIDGET_EXTENSIONS.items()
        if not any((folder / extension / "package.json").is_file() for folder in folders)
    ]
    for extension, package in missing:
        yield Finding(
            "widgets",
            f"JupyterLab has no extension {extension}, so no widget would draw.",
            "error",
            pip_command(f"--force-reinstall --no-deps {package}"),
        )
    if not missing:
        yield Finding("widgets", f"JupyterLab has {' and '.join(_WIDGET_EXTENSIONS)}")


def _check_kernel() -> Iterator[Finding]:
    """See whether notebooks would run in the Python that has the course installed."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return
    remedy = f"{quoted(sys.executable)} -m ipykernel install --sys-prefix"
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding("kernel", "JupyterLab has no Python kernel.", "error", remedy)
        return
    by_name_only = re.fullmatch(r"python[\d.]*", command)  # Jupyter then takes its own Python
    if (
        not by_name_only
        and Path(command).absolute().parent != Path(sys.executable).absolute().parent
    ):
        yield Finding(
            "kernel",
            f"Notebooks would run in {command}, which is not the Python of the course.",
            "warning",
            remedy,
        )


def _check_course() -> Iterator[Finding]:
    try:
        course = find_course()
    except CourseNotFoundError as error:
        yield Finding("course", f"There is {error}.", "error", error.remedy)
        return
    yield Finding("course", str(course))
    package = Path(__file__).resolve().parent
    if (course / "mptutor").is_dir() and (course / "mptutor").resolve() != package:
        yield Finding(
            "mptutor",
            f"is imported from {package}, which is not this course's.",
            "warning",
            pip_command(f'-e "{course}[course]"'),
        )
    free_mb = shutil.disk_usage(course).free // 10**6
    if free_mb < _ENOUGH_DISK_MB:
        yield Finding(
            "disk",
            f"Only {free_mb} MB are free where the course is.",
            "warning",
            f"free {_ENOUGH_DISK_MB} MB, or notebooks may fail to save",
        )
