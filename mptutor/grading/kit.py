"""What a student's code may see of this package: a copy without the answers.

The copy leaves out every reference, every expected value and the grader itself, so the process
that runs a student's code could not import them if it tried. It is what the warm parent imports
from, too, for what a parent has imported its copies have as well.

The rest of the package stays, since exercises are written with it. A task whose answer the package
holds can have a module withheld.
"""

from __future__ import annotations

import shutil
import site
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import torch

import mptutor
from mptutor.grading.sandbox_linux import View

PACKAGE = Path(mptutor.__file__).resolve().parent

#: The modules of `mptutor.checks` and `mptutor.grading` that run beside a student's code. Probes
#: know nothing of right and wrong, so every module of theirs may come along.
_BESIDE_THE_STUDENT = {
    "checks": {"__init__.py", "plain.py", "probes*.py"},
    "grading": {
        "__init__.py",
        "child.py",
        "limits.py",
        "magics.py",
        "sandbox_linux.py",
        "seccomp.py",
        "supervise.py",
        "warm.py",
    },
}


@contextmanager
def kit(withheld: Iterable[str] = ()) -> Iterator[Path]:
    """Copy the package without its answers, for as long as the context lasts.

    Parameters
    ----------
    withheld : iterable of str
        Modules that are to be missing as well, such as ``"mptutor.scaling"``.

    Yields
    ------
    Path
        The folder to import from.
    """
    with tempfile.TemporaryDirectory(prefix="mptutor-kit-") as folder:
        root = Path(folder)
        root.chmod(0o755)  # the sandbox's user is not the one who runs the grader
        shutil.copytree(PACKAGE, root / "mptutor", ignore=_left_out)
        for module in withheld:
            _remove(root.joinpath(*module.split(".")))
        yield root


def view_of(kit_folder: Path) -> View:
    """Return what a sandbox shows: Python, its libraries and the kit; this package nowhere else."""
    libraries = {sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages()}
    libraries.add(str(Path(torch.__file__).parents[1]))
    visible = [*sorted(str(Path(path).resolve()) for path in libraries), str(kit_folder)]
    return View(tuple(visible), hidden=(str(_installed_at()),))


def _installed_at() -> Path:
    """Return the folder to hide: the checkout that the package is run from, or the package."""
    checkout = PACKAGE.parent
    return checkout if (checkout / "pyproject.toml").exists() else PACKAGE


def _left_out(folder: str, names: list[str]) -> set[str]:
    within = Path(folder).relative_to(PACKAGE)
    if str(within) in _BESIDE_THE_STUDENT:
        kept = _BESIDE_THE_STUDENT[str(within)]
        return {name for name in names if not any(fnmatch(name, one) for one in kept)}
    return set(names) & {"__pycache__"}


def _remove(module: Path) -> None:
    if module.is_dir():
        shutil.rmtree(module)
    else:
        module.with_suffix(".py").unlink(missing_ok=True)
