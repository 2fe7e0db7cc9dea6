"""The largest gradient of every step of one real training: what the scaler simulator replays.

A loss scaler sees nothing of a gradient but whether it overflows, and that is decided by the
largest. So one number a step is all that a simulation needs. The training is lesson 06's: an MLP on
pictures of clothes, in AMP FP16. It ran with a fixed scale low enough that nothing ever overflows
and no step is skipped; the history is what the gradients do when the scaler does not interfere.

The history is shipped, with how it was made, since recording takes a minute or two. To record anew:

    python -m mptutor.widgets.gradient_history
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from mptutor.experiments.scaler_traces import trace_scaler
from mptutor.scaling import StaticLossScaler

STEPS = 400

#: 65520 / 256 is what a gradient would have to reach to overflow.
_RECORDING_SCALE = 256.0

_FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class GradientHistory:
    """The largest gradient of each step, unscaled, and how the training was run."""

    largest_gradients: tuple[float, ...]
    made_by: str


def record_history(steps: int = STEPS) -> GradientHistory:
    """Train once and return the largest gradient of every step, to four significant digits."""
    scaler = StaticLossScaler(_RECORDING_SCALE)
    trace = trace_scaler(scaler, steps=steps, device="cpu")
    if any(trace.skipped):
        raise RuntimeError(f"scale {_RECORDING_SCALE:g} overflowed: record with a smaller one")
    made_by = (
        f"trace_scaler(StaticLossScaler({_RECORDING_SCALE:g}), steps={steps}), FP16 arithmetic "
        f"simulated on a CPU, torch {torch.__version__.split('+')[0]}, "
        f"Python {platform.python_version()}"
    )
    return GradientHistory(tuple(float(f"{g:.4g}") for g in trace.largest_gradients), made_by)


@cache
def load_history() -> GradientHistory:
    """Return the history that comes with the package."""
    plain = json.loads(_FILE.read_text(encoding="utf-8"))
    return GradientHistory(tuple(plain["largest_gradients"]), plain["made_by"])


if __name__ == "__main__":
    _FILE.write_text(json.dumps(asdict(record_history())) + "\n", encoding="utf-8")
