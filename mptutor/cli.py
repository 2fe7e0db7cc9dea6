"""The command ``mptutor``: one verb, one module.

A verb's module is imported when the verb is typed, so ``mptutor --help`` needs neither torch nor
JupyterLab, and a broken package can't keep `mptutor doctor` from saying so.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata

#: verb: (the module with its ``main(argv) -> int``, what it does).
VERBS = {
    "lab": ("mptutor.lab", "check this machine and open the course in JupyterLab"),
    "check": ("mptutor.checks.run", "check the exercises in one of your notebooks"),
    "progress": ("mptutor.checks.progress", "show which exercises you have solved"),
    "audit": ("mptutor.audit.cli", "look over a training script: what is wrong, and the repair"),
    "forecast": ("mptutor.forecast.cli", "forecast memory and time on a GPU you don't have"),
    "record": ("mptutor.records.cli", "run all experiments on this GPU and write a record"),
    "doctor": ("mptutor.doctor", "check this machine; every problem comes with its remedy"),
    "grade": ("mptutor.grading.cli", "grade a class, each submission in a sandbox of its own"),
}


def main(argv: list[str] | None = None) -> int:
    """Run ``mptutor VERB ...``; return the exit code, 2 for an unknown verb."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    verb, *rest = argv
    if verb in ("-V", "--version"):
        print(f"mptutor {metadata.version('mptutor')}")
        return 0
    if verb not in VERBS:
        print(f"mptutor: there is no verb {verb!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    module, _ = VERBS[verb]
    return import_module(module).main(rest)


def _usage() -> str:
    lines = [f"  {verb:10}{purpose}" for verb, (_, purpose) in VERBS.items()]
    return "\n".join(
        [
            "usage: mptutor VERB [arguments]",
            "",
            *lines,
            "",
            "mptutor VERB --help tells more about one, mptutor --version which this is.",
        ]
    )
