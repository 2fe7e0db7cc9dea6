"""From results to reports, and from the results of several graders to one class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mptutor.grading.feedback import feedback_page
from mptutor.grading.report import grades_csv
from mptutor.grading.result import Result
from mptutor.grading.store import Store, write_whole
from mptutor.grading.summary import summary_page


def write_reports(store: Store) -> Sequence[Result]:
    """Write the grades, the summary and everybody's feedback from the results that are there."""
    results = store.all()
    for result in results:
        path = store.path("feedback", result.lesson, result.student, ".html")
        write_whole(path, feedback_page(result))
    write_whole(store.folder / "grades.csv", grades_csv(results))
    write_whole(store.folder / "summary.html", summary_page(results))
    return results


def merge(parts: Iterable[Path], into: Path) -> Sequence[Result]:
    """Bring the results of several graders together and write the reports.

    Raises
    ------
    ValueError
        If the graders did not ask the same questions, or differ about a submission.
    """
    parts = [Path(part) for part in parts]
    seeds = {part: _seed(part) for part in parts}
    if len(set(seeds.values())) != 1:
        told = ", ".join(f"{part}: {seed}" for part, seed in seeds.items())
        raise ValueError(f"these were not graded with the same seed ({told})")
    store = Store(into)
    store.seed(seeds[parts[0]])
    for part in parts:
        for path in sorted(part.glob("results/*/*.json")) + sorted(part.glob("costs/*/*.json")):
            _take_over(path, into / path.relative_to(part))
    return write_reports(store)


def _seed(folder: Path) -> int:
    try:
        return int(json.loads((folder / "run.json").read_text())["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"there are no results in {folder}") from None


def _take_over(path: Path, target: Path) -> None:
    text = path.read_text()
    is_result = target.parts[-3] == "results"
    if is_result and target.exists() and target.read_text() != text:
        raise ValueError(f"{path} and {target} are different results for the same submission")
    write_whole(target, text)
