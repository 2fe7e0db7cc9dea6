"""`mptutor audit`: run a script as `python` would, watch it, and report.

::

    mptutor audit [--steps N] [--json FILE] script.py [arguments of the script]
    mptutor audit [--steps N] [--json FILE] -m package.module [arguments]

The script sees its own arguments, is `__main__`, finds modules beside itself, and ends as it would
by itself: with its exit code, its exception and traceback. The report goes to stderr, so that
stdout stays the script's. With `--steps N` the audit watches N optimizer steps, reports at once
and is gone; the script goes on undisturbed. Without it, the report comes when the script has ended.

Options also count as the audit's at the very end of the line. To hand a script options of these
names there, put `--` in front of its arguments: ``mptutor audit train.py -- --steps 100``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

USAGE = "usage: mptutor audit [--steps N] [--json FILE] script.py [arguments]"


@dataclass
class Request:
    """What was asked for on the command line."""

    target: str = ""
    is_module: bool = False
    arguments: list[str] = field(default_factory=list)
    steps: int | None = None
    json_file: str | None = None


def main(argv: list[str]) -> int:
    """Run `mptutor audit` with these arguments; returns the exit code of the script."""
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        request = parse(argv)
    except ValueError as error:
        print(f"mptutor audit: {error}\n{USAGE}", file=sys.stderr)
        return 2
    return _run_watched(request)


def parse(argv: list[str]) -> Request:
    """Tell the audit's own options from the script and the script's arguments.

    Raises
    ------
    ValueError
        If there is no script, or an option has no value or a wrong one.
    """
    request, rest = Request(), list(argv)
    while rest[:1] and rest[0].startswith("--"):
        _take_option(request, rest.pop(0), rest)
    if rest[:1] == ["-m"]:
        request.is_module = True
        rest.pop(0)
    if not rest:
        raise ValueError("which script? Nothing came after the options")
    request.target = rest.pop(0)
    if rest[:1] == ["--"]:
        request.arguments = rest[1:]
        return request
    while len(rest) >= 2 and rest[-2] in ("--steps", "--json"):
        value = rest.pop()
        _take_option(request, rest.pop(), [value])
    request.arguments = rest
    return request


def _take_option(request: Request, option: str, values: list[str]) -> None:
    option, given, value = option.partition("=")
    if option not in ("--steps", "--json"):
        raise ValueError(f"no such option: {option}")
    if not given:
        if not values:
            raise ValueError(f"{option} needs a value")
        value = values.pop(0)
    if option == "--json":
        request.json_file = value
    elif value.isdigit() and int(value) > 0:
        request.steps = int(value)
    else:
        raise ValueError(f"--steps takes a number of steps, 1 or more; got {value!r}")


def _run_watched(request: Request) -> int:
    from mptutor.audit.session import Audit

    try:
        run = _module(request) if request.is_module else _script(request)
    except (OSError, ImportError) as error:
        print(f"mptutor audit: {error}", file=sys.stderr)
        return 2
    audit = Audit()
    reported: list[bool] = []

    def report() -> None:
        if not reported:
            reported.append(True)
            audit.stop()
            _report(audit, request.json_file)

    audit.start(after_steps=request.steps, then=report)
    try:
        return _exit_code(run)
    finally:
        report()


def _report(audit, json_file: str | None) -> None:
    """Print the report in the first process of a run; write JSON in each, under its rank."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        print(audit, file=sys.stderr)
    if json_file is not None:
        path = Path(json_file)
        if rank != "0":
            path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
        path.write_text(audit.to_json())


# -- running a script as python does -------------------------------------------------------------


def _script(request: Request) -> Callable[[], None]:
    """Prepare what `python script.py arguments` would do."""
    path = os.path.abspath(request.target)
    loader = SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    main_module = _main_module(path, loader)

    def run() -> None:
        sys.argv = [request.target, *request.arguments]
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        sys.modules["__main__"] = main_module
        _execute(code, main_module)

    return run


def _main_module(path: str, loader: SourceFileLoader) -> ModuleType:
    """Make a `__main__` that stays: pickle and worker processes look it up until the end."""
    module = ModuleType("__main__")
    vars(module).update(
        __file__=path,
        __builtins__=__builtins__,
        __loader__=loader,
        __spec__=None,
        __package__=None,
        __cached__=None,
        __doc__=None,
    )
    return module


def _module(request: Request) -> Callable[[], None]:
    """Prepare what `python -m package.module arguments` would do."""
    import runpy

    def run() -> None:
        sys.argv = [request.target, *request.arguments]
        sys.path[0] = os.getcwd()
        runpy.run_module(request.target, run_name="__main__", alter_sys=True)

    return run


def _execute(code: CodeType, module: ModuleType) -> None:
    exec(code, vars(module))


def _exit_code(run: Callable[[], None]) -> int:
    """Run to the end and return the exit code, with errors printed as the interpreter does."""
    try:
        run()
    except SystemExit as stop:
        return _code_of(stop)
    except KeyboardInterrupt as interrupt:
        _print_error(interrupt)
        return 130
    except BaseException as error:
        _print_error(error)
        return 1
    return 0


def _code_of(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """Print the traceback from the script on, through the script's own excepthook if it has one."""
    step = error.__traceback__
    here = os.path.abspath(__file__)
    while step is not None and step.tb_frame.f_code.co_filename == here:
        step = step.tb_next
    sys.stdout.flush()
    try:
        sys.excepthook(type(error), error.with_traceback(step), step)
    except BaseException:
        traceback.print_exc()
