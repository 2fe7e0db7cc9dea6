"""Records: results of the experiments on GPUs that somebody had, shown beside the learner's own.

``mptutor record`` runs the experiments on the GPU at hand and writes one JSON file.  Files in this
folder come with the course, and lessons show what is in them, named as what it is.  Where there are
none, nothing is shown: a number that nobody measured is not shown as measured.

>>> for found in recorded("training"):
...     print(found.label, found.result.headline)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mptutor.experiments.result import Result
from mptutor.provenance import framed
from mptutor.records.record import Record
from mptutor.records.registry import EXPERIMENTS

__all__ = ["Record", "Recorded", "Shown", "load", "read", "recorded", "show"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Recorded:
    """One experiment's result from one record."""

    label: str
    result: Result


@dataclass(frozen=True)
class Shown:
    """Results from records, as a notebook shows them: each under where and when it was recorded."""

    found: tuple[Recorded, ...]

    def __str__(self) -> str:
        return "\n\n".join(f"{r.label}\n{r.result}" for r in self.found)

    def _repr_html_(self) -> str:
        return "".join(
            framed("recorded", escape(r.label.removeprefix("recorded ")) + r.result._repr_html_())
            for r in self.found
        )


def load(folder: Path = _FOLDER) -> tuple[Record, ...]:
    """Read all records of a folder, the oldest first; a broken file is named in a warning."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(read(path))
        except ValueError as error:
            warnings.warn(str(error), stacklevel=2)
    return tuple(sorted(records, key=lambda record: record.date))


def read(path: Path) -> Record:
    """Read a record.

    Raises
    ------
    ValueError
        If the file is not a record that this course can read; the message names the file.
    """
    try:
        return Record.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def recorded(experiment: str, folder: Path = _FOLDER) -> tuple[Recorded, ...]:
    """Return the results of an experiment from all records that have one.

    Parameters
    ----------
    experiment
        Its name in `mptutor.records.registry.EXPERIMENTS`.
    """
    by_name = {known.name: known for known in EXPERIMENTS}
    if experiment not in by_name:
        raise ValueError(f"experiment: got {experiment!r}, allowed are {', '.join(by_name)}")
    found = []
    for record in load(folder):
        outcome = record.outcomes.get(experiment)
        if outcome is None or outcome.result is None:
            continue
        try:
            found.append(Recorded(record.label, by_name[experiment].read(outcome.result)))
        except ValueError as error:  # the result has had other fields since
            warnings.warn(f"{experiment}, {record.label}: {error}", stacklevel=2)
    return tuple(found)


def show(experiment: str, folder: Path = _FOLDER) -> Shown | None:
    """Return what a lesson shows of an experiment's records: nothing if there are none."""
    found = recorded(experiment, folder)
    return Shown(found) if found else None
