"""``mptutor lab``: check the machine, then open the course in JupyterLab.

JupyterLab is started as the course wants it without touching how the user has set up their own.
Jupyter looks for settings along ``JUPYTER_CONFIG_PATH`` first; there the course adds a folder of
its own (``mptutor/jupyter``) with two defaults: no pop-up that asks about Jupyter news, and dark
or light as the system is.  They are defaults, so what a user has chosen in JupyterLab still wins.
The arrangement of open tabs is kept with the course (``.jupyter/``) instead of in the user's
folder.

The check runs in a process of its own: torch would otherwise keep half a gigabyte of memory in the
server for as long as it runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from mptutor.course import FIRST_LESSON, CourseNotFoundError, find_course

_CONFIG = Path(__file__).parent / "jupyter"


def main(argv: list[str]) -> int:
    """Check, then serve until interrupted; return 1 if something keeps the course from working."""
    arguments = _parse(argv)
    print("Looking at this machine ...\n", flush=True)
    checked = subprocess.run([sys.executable, "-m", "mptutor", "doctor"], check=False)
    if checked.returncode:
        return checked.returncode
    try:
        course = find_course()
    except CourseNotFoundError as error:
        print(f"mptutor lab: {error}; {error.remedy}", file=sys.stderr)
        return 1
    if arguments.check_only:
        return 0
    print("\nOpening JupyterLab; Ctrl+C here stops it.\n", flush=True)
    os.environ.update(environment(course))
    return _serve(command_line(course, arguments))


def environment(course: Path) -> dict[str, str]:
    """Return the environment variables that JupyterLab is started with."""
    search = [str(_CONFIG), os.environ.get("JUPYTER_CONFIG_PATH")]
    return {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, search)),
        "JUPYTERLAB_WORKSPACES_DIR": str(course / ".jupyter" / "workspaces"),
    }


def command_line(course: Path, arguments: argparse.Namespace) -> list[str]:
    """Return JupyterLab's arguments."""
    found = [
        f"--ServerApp.root_dir={course}",
        f"--LabApp.default_url=/lab/tree/{FIRST_LESSON.as_posix()}",
        "--Application.log_level=WARN",  # or fifty lines push the check off the screen
    ]
    if arguments.no_browser:
        found.append("--no-browser")
    if arguments.port is not None:
        found.append(f"--ServerApp.port={arguments.port}")
    return found + arguments.jupyter


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mptutor lab",
        usage="%(prog)s [--no-browser] [--port PORT] [--check-only] [arguments of JupyterLab]",
        description="Check this machine and open the course in JupyterLab.",
        epilog="Everything else is handed to JupyterLab: mptutor lab --allow-root",
    )
    parser.add_argument("--no-browser", action="store_true", help="don't open a browser")
    parser.add_argument("--port", type=int, help="the port to serve on (default: the first free)")
    parser.add_argument("--check-only", action="store_true", help="check, but don't serve")
    arguments, jupyter = parser.parse_known_args(argv)
    arguments.jupyter = [argument for argument in jupyter if argument != "--"]
    return arguments


def _serve(jupyter: list[str]) -> int:
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(jupyter)
    return 0
