"""All runs of the step debugger, packed: what `StepDebugger` shows and its view reads.

The runs are shipped, with how they were made, since making them takes several seconds. A test makes
some anew and compares. To make all anew:

    python -m mptutor.widgets.step_recording

Runs have much in common, so they are packed as numbers of entries in shared lists. Whatever is the
same at two stops is stored once:

    gradients, losses, scaling, weights    lists of what can be seen, one row each
    moments                                rows [event, losses, gradients, scaling, weights]
    runs                                   loop -> batch -> scale -> [moments, error]

Lines are not stored: stops follow the loop, one a call, with a second one on a line after
"checked". Sizes have four significant digits, the weight that is followed nine, as FP32 needs;
scales are exact. NaN and infinities are text, as JSON has none.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mptutor.widgets.step_loops import Loop
from mptutor.widgets.step_runs import (
    Gradients,
    Losses,
    Run,
    Scaling,
    Stop,
    Weights,
    run_all,
)

_FILE = Path(__file__).with_name("step_runs.json")
_ROWS = {"losses": Losses, "gradients": Gradients, "scaling": Scaling, "weights": Weights}

#: Significant digits, where they are not `_DIGITS`. Scales are powers of two.
_DIGITS = 4
_MORE_DIGITS = {("scaling", "scale"): 17, ("weights", "one"): 9}

#: A key of a run: loop, batch, scale.
Key = tuple[str, str, float]


def pack(runs: Mapping[Key, Run]) -> dict[str, Any]:
    """Return runs as JSON-able lists that share what they have in common."""
    pools: dict[str, dict[Any, int]] = {name: {} for name in (*_ROWS, "moments", "errors")}

    def number(pool: str, entry: Any) -> int:
        return pools[pool].setdefault(entry, len(pools[pool]))

    def moment(stop: Stop) -> int:
        rows = (getattr(stop, name) for name in _ROWS)
        packed = [
            -1 if row is None else number(name, _pack_row(name, row))
            for name, row in zip(_ROWS, rows, strict=True)
        ]
        return number("moments", (stop.event, *packed))

    packed_runs: dict[str, Any] = {}
    for (loop, batch, scale), run in runs.items():
        entry = [[moment(stop) for stop in run.stops], number("errors", run.error)]
        packed_runs.setdefault(loop, {}).setdefault(batch, {})[f"{scale:.12g}"] = entry
    lists = {name: [list(e) if name != "errors" else e for e in pools[name]] for name in pools}
    return {**lists, "runs": packed_runs}


def unpack(packed: Mapping[str, Any], loop: Loop, batch: str, scale: float) -> Run:
    """Return one run of what `pack` made; numbers are those that were packed."""
    moments, error = packed["runs"][loop.name][batch][f"{scale:.12g}"]
    places = _places(loop, [packed["moments"][i][0] for i in moments])
    stops = []
    for place, index in zip(places, moments, strict=True):
        event, *numbers = packed["moments"][index]
        rows = (
            None if i < 0 else row(*map(_unpack_value, packed[name][i]))
            for (name, row), i in zip(_ROWS.items(), numbers, strict=True)
        )
        stops.append(Stop(*place, event, *rows))
    return Run(tuple(stops), packed["errors"][error])


def _places(loop: Loop, events: Iterable[str]) -> list[tuple[int, int]]:
    """Return step and line of each stop."""
    places, step, line = [], 0, -1
    previous = ""
    for event in events:
        if previous != "checked":
            step, line = (step, line + 1) if line + 1 < len(loop.calls) else (step + 1, 0)
        places.append((step, line))
        previous = event
    return places


def _pack_row(name: str, row: Any) -> tuple[Any, ...]:
    return tuple(
        _pack_value(value, _MORE_DIGITS.get((name, field), _DIGITS))
        for field, value in asdict(row).items()
    )


def _pack_value(value: Any, digits: int) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _unpack_value(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


@cache
def load_recording() -> dict[str, Any]:
    """Return the packed runs that come with the package, and under ``made_by`` how they arose."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def make_recording() -> dict[str, Any]:
    """Run every loop in every situation and return the runs, packed."""
    made_by = (
        f"run_all(), FP16 arithmetic simulated on a CPU, torch {torch.__version__.split('+')[0]}, "
        f"Python {platform.python_version()}"
    )
    return {"made_by": made_by, **pack(run_all())}


if __name__ == "__main__":
    _FILE.write_text(json.dumps(make_recording(), allow_nan=False, separators=(",", ":")) + "\n")
