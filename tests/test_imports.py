"""Imports run one way, and `import mptutor` stays cheap (the design, section 1)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mptutor"

#: What a part of the package must never import, directly.
FORBIDDEN = {
    "formats": {"rounding", "census", "scaling", "tensorcore", "policy", "hardware", "experiments"},
    "rounding": {"census", "scaling", "tensorcore", "policy", "hardware", "experiments"},
    "census_cells": {"census", "scaling", "tensorcore", "policy", "hardware", "experiments"},
    "census": {"scaling", "tensorcore", "experiments"},
    "scaler_state": {"scaling", "census", "tensorcore", "policy", "hardware", "experiments"},
    "scaling": {"census", "tensorcore", "experiments"},
    "fp8": {"census", "scaling", "tensorcore", "policy", "hardware", "experiments"},
    "tensorcore": {"census", "scaling", "experiments"},
    "policy": {"experiments"},
    "hardware": {"experiments"},
    "experiments": set(),
    "audit": set(),
    "checks": set(),
    "grading": set(),
}
UPWARDS = {"plots", "widgets", "cli", "lab"}

#: Which part alone may import a package.
OWNERS = {
    "matplotlib": {"plots"},
    "ipywidgets": {"widgets"},
    "anywidget": {"widgets"},
    "traitlets": {"widgets"},
}


def parts() -> list[tuple[str, Path]]:
    return [(p.relative_to(PACKAGE).with_suffix("").parts[0], p) for p in PACKAGE.rglob("*.py")]


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(("part", "path"), parts(), ids=lambda value: str(value)[-40:])
def test_imports_run_one_way(part, path):
    own = {name.split(".")[1] for name in imported(path) if name.startswith("mptutor.")}
    assert own & (FORBIDDEN.get(part, set()) - {part}) == set()
    if part in FORBIDDEN:
        assert own & UPWARDS == set()


@pytest.mark.parametrize(("part", "path"), parts(), ids=lambda value: str(value)[-40:])
def test_drawing_stays_where_it_belongs(part, path):
    for name in imported(path):
        owners = OWNERS.get(name.partition(".")[0])
        assert owners is None or part in owners, f"{path} imports {name}"


def test_importing_the_package_loads_nothing_but_torch():
    code = (
        "import torch, sys; before = set(sys.modules); import mptutor; mptutor.FP16; "
        "mptutor.quantize; print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) - sys.stdlib_module_names == {"mptutor"}
