"""Makes a record: runs every experiment at its GPU size and keeps what came out, or why nothing.

The time is shared out as it goes: an experiment gets an equal part of what is left, so one that is
quick leaves more for the others.  Most can be stopped between two steps and then return what they
have, which says of itself that it is not finished.  One that fails does not spoil the rest.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from mptutor.experiments.result import Result
from mptutor.records.machine import Machine
from mptutor.records.registry import Experiment

#: Raised when the file's layout changes.
LAYOUT = 1

MINUTES = 10


@dataclass(frozen=True)
class Outcome:
    """What one experiment gave.

    Attributes
    ----------
    seconds
        How long it ran.
    result
        Its result as plain values, ``Result.to_plain()``; None if it failed.
    failure
        Why there is none, else None.
    """

    seconds: float
    result: dict[str, Any] | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Record:
    """All results of one GPU.

    Attributes
    ----------
    machine, date
        Where and when, ``"2026-01-31T12:00:00+00:00"``.
    outcomes
        By the names of the experiments.
    """

    machine: Machine
    date: str
    outcomes: dict[str, Outcome]

    @property
    def label(self) -> str:
        """Say what a number from here is: ``"recorded on NVIDIA L4, torch 2.9.0, 2026-01-31"``."""
        return f"recorded on {self.machine.gpu}, torch {self.machine.torch}, {self.date[:10]}"

    @property
    def failures(self) -> dict[str, str]:
        """The experiments that failed, and why."""
        return {name: o.failure for name, o in self.outcomes.items() if o.failure is not None}

    def to_json(self) -> str:
        """Return the record as strict JSON."""
        content = {"layout": LAYOUT, **asdict(self)}
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is not a record, or one of another layout.
        """
        try:
            content = json.loads(text)
            if content["layout"] != LAYOUT:
                raise ValueError(f"it has layout {content['layout']}, this course reads {LAYOUT}")
            outcomes = {name: Outcome(**o) for name, o in content["outcomes"].items()}
            return cls(Machine(**content["machine"]), content["date"], outcomes)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"it is not a record: {error!r}") from error


def make_record(
    machine: Machine,
    device: torch.device,
    *,
    experiments: Sequence[Experiment],
    seconds: float = 60 * MINUTES,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """Run the experiments on a device within a time.

    Parameters
    ----------
    machine
        What the device is.
    say
        Called with a line before and after each experiment.
    """
    deadline = clock() + seconds
    outcomes = {}
    for left, experiment in zip(range(len(experiments), 0, -1), experiments, strict=True):
        share = max(deadline - clock(), 0.0) / left
        say(f"{experiment.name}, at most about {share:.0f} s")
        outcomes[experiment.name] = _run(experiment, device, share, clock)
        say(f"  {_describe(outcomes[experiment.name])}")
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Record(machine, date, outcomes)


def _run(
    experiment: Experiment, device: torch.device, share_s: float, clock: Callable[[], float]
) -> Outcome:
    start = clock()
    try:
        result = experiment.run(device, stop=lambda: clock() - start >= share_s)
        return Outcome(seconds=clock() - start, result=_checked(result))
    except Exception as error:  # one experiment's trouble is not the others'
        return Outcome(seconds=clock() - start, failure=f"{type(error).__name__}: {error}")


def _checked(result: Result) -> dict[str, Any]:
    plain = result.to_plain()
    json.dumps(plain, allow_nan=False)  # fails here, rather than when everything has been run
    return plain


def _describe(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"failed after {outcome.seconds:.0f} s: {outcome.failure}"
    stopped = ", stopped early" if outcome.result.get("finished") is False else ""
    return f"done in {outcome.seconds:.0f} s{stopped}"


def write_atomically(text: str, path: Path) -> None:
    """Write a file so that nobody, at any time, finds half of it."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)  # mkstemp's files are the owner's alone
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
