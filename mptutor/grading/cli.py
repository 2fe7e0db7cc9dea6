"""``mptutor grade``: the command line of grading."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mptutor.checks import lessons_with_tasks
from mptutor.grading.backends import NAMES, NoSandbox
from mptutor.grading.classroom import Settings, grade_class
from mptutor.grading.collect import collect, shard
from mptutor.grading.limits import MIB, Limits
from mptutor.grading.merge import merge, write_reports
from mptutor.grading.report import Progress, table
from mptutor.grading.store import Store

_DESCRIPTION = """\
Grade notebooks that students handed in, each in a sandbox of its own.

SUBMISSIONS are notebooks, or folders of them: as nbgrader collects them (submitted/), one folder a
student, or all in one folder. A run that is interrupted goes on where it stopped.

  mptutor grade SUBMISSIONS...               grade a class
  mptutor grade merge OUT... --out DIR       put the results of several graders together
  mptutor grade import OUT --gradebook DB    enter the results into nbgrader's gradebook
"""


def main(argv: Sequence[str]) -> int:
    """Run ``mptutor grade``; return the exit code, 2 if nothing could be done."""
    verbs = {"merge": _merge, "import": _import}
    verb, rest = (verbs[argv[0]], argv[1:]) if argv and argv[0] in verbs else (_grade, argv)
    try:
        return verb(rest)
    except (NoSandbox, FileNotFoundError, ValueError) as error:
        print(f"mptutor grade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmptutor grade: stopped; the same command goes on from here.", file=sys.stderr)
        return 130


def _grade(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.shard and options.seed is None:
        raise ValueError("--shard needs --seed, so that all shards ask the same questions")
    submissions = collect(options.submissions)
    if options.shard:
        submissions = shard(submissions, *options.shard)
    store = Store(options.out)
    settings = Settings(
        seed=store.seed(options.seed),
        backend="trusted" if options.trust_students else options.backend,
        limits=_limits(options),
        jobs=options.jobs,
        image=options.image,
        container_options=tuple(options.container_option),
    )
    progress = Progress(len(submissions), sys.stderr)
    results = []
    try:
        for graded in grade_class(submissions, settings, store, options.lesson):
            results.append(graded.result)
            progress.step(graded.fresh)
    finally:
        progress.end()
    print(table(sorted(results, key=lambda result: (result.lesson, result.student))))
    if options.shard:
        print(f"\nResults: {options.out}. Reports come with `mptutor grade merge`.")
    else:
        write_reports(store)
        _say_where(options.out)
    return 0


def _merge(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("mptutor grade merge", description=merge.__doc__)
    parser.add_argument("parts", nargs="+", type=Path, metavar="OUT", help="a grader's --out")
    parser.add_argument("--out", type=Path, required=True, help="the folder for all of them")
    options = parser.parse_args(argv)
    print(table(merge(options.parts, options.out)))
    _say_where(options.out)
    return 0


def _import(argv: Sequence[str]) -> int:
    from mptutor.grading.gradebook import enter

    parser = argparse.ArgumentParser("mptutor grade import", description=enter.__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="a grader's --out")
    parser.add_argument(
        "--gradebook", default="gradebook.db", help="nbgrader's database, a file or a URL"
    )
    options = parser.parse_args(argv)
    count = enter(Store(options.out).all(), options.gradebook)
    print(f"{count} submissions entered into {options.gradebook}")
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = Limits()
    parser = argparse.ArgumentParser(
        "mptutor grade",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("submissions", nargs="+", type=Path, metavar="SUBMISSIONS")
    add("--out", type=Path, default=Path("graded"), help="where results go (default: graded)")
    add("--lesson", choices=lessons_with_tasks(), help="the exercise, where names do not say it")
    add("--seed", type=_seed, help="the seed of the hidden questions (default: a secret one)")
    add("--jobs", type=_positive, default=1, metavar="N", help="how many at a time (default: 1)")
    add("--shard", type=_shard, metavar="I/N", help="grade the I-th of N shares of the class")
    add(
        "--timeout",
        type=float,
        default=defaults.cell_s,
        metavar="S",
        help="seconds for each cell and each task (default: %(default)g); a submission has six "
        "times as long",
    )
    add(
        "--memory",
        type=_positive,
        default=defaults.memory_bytes // MIB,
        metavar="MIB",
        help="memory for a submission (default: %(default)s)",
    )
    add(
        "--backend", choices=NAMES[:-1], default=NAMES[0], help="the sandbox (default: %(default)s)"
    )
    add("--image", default=Settings.image, help="the container image (default: %(default)s)")
    add(
        "--container-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option for `docker run`, as in --container-option=--gpus=all",
    )
    add(
        "--trust-students",
        action="store_true",
        help="run their code without any sandbox, with your rights",
    )
    return parser


def _limits(options: argparse.Namespace) -> Limits:
    if not 0 < options.timeout < float("inf"):
        raise ValueError(f"--timeout is {options.timeout:g}; it takes a positive number of seconds")
    return Limits(
        cell_s=options.timeout,
        submission_s=6 * options.timeout,
        memory_bytes=options.memory * MIB,
    )


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 1:
        raise argparse.ArgumentTypeError(f"{seed} is not allowed: a seed is 1 or larger")
    return seed


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not allowed: it takes 1 or more")
    return number


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: I/N with I from 1 to N, as in 2/8")
    return int(match[1]), int(match[2])


def _say_where(out: Path) -> None:
    print(f"\nGrades: {out / 'grades.csv'}   Summary: {out / 'summary.html'}")
    print(f"Feedback for the students: {out / 'feedback'}")
