"""Imports every module of the package there is, here and in a fresh Python."""

import pkgutil
import subprocess
import sys

import mptutor.checks
import mptutor.grading

for package in (mptutor.checks, mptutor.grading):
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("lesson") or module.name in ("judge", "grade", "assignment"):
            raise RuntimeError("GAINED " + module.name)
for name in ("mptutor.checks.lesson01", "mptutor.checks.judge", "mptutor.checks.task"):
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if spec and spec.loader and spec.name == name:
            raise RuntimeError("GAINED " + name)
done = subprocess.run(
    [sys.executable, "-c", "import mptutor.checks.lesson01"], cwd="/", capture_output=True
)
if done.returncode == 0:
    raise RuntimeError("GAINED the answers in a fresh Python")
