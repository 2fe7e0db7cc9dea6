"""The state machine of dynamic loss scaling.

The scale should be as large as it can be without overflow, and nobody knows how large that is: it
depends on the model and moves during training. So one tries. Two rules find it and follow it:

    a step with inf or NaN in its gradients       scale × 1/2, and count from zero
    the 2000th step in a row without              scale × 2,   and count from zero

The magnitude of the gradients plays no part, only whether anything overflowed. The scale steps over
the edge once in a while, loses that one step, and goes back. Started too high it comes down within
a few steps; started too low it needs thousands, which is why it starts at 65536.

`next_state` is this rule as a pure function: state in, state out. `DynamicLossScaler` applies it to
a training run, a simulation applies it to a list of booleans. `torch.amp.GradScaler` runs the same
machine in one kernel, ``torch._amp_update_scale_``, without leaving the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class ScalerState:
    """Everything that decides the scale: where it stands and by which rule it moves.

    Parameters
    ----------
    scale : float
        What the loss is multiplied by. An FP32 number, as in GradScaler.
    growth_tracker : int
        Steps without inf or NaN since the scale last changed, or would have.
    skips_in_a_row : int
        Steps skipped since the last one that ran.
    growth_factor, backoff_factor : float
        What the scale is multiplied by when it grows, and after a skip.
    growth_interval : int
        Steps without inf or NaN that make the scale grow.
    min_scale : float
        The scale does not fall below this. GradScaler has no such floor, which is 0 here.
    """

    scale: float = 2.0**16
    growth_tracker: int = 0
    skips_in_a_row: int = 0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 0.0


def next_state(state: ScalerState, found_inf: bool) -> ScalerState:
    """Return the state after a step in which inf or NaN was found, or was not.

    Examples
    --------
    >>> state = ScalerState(scale=1024.0, growth_interval=2)
    >>> next_state(state, found_inf=True).scale
    512.0
    >>> next_state(next_state(state, found_inf=False), found_inf=False).scale
    2048.0
    """
    if found_inf:
        return replace(
            state,
            scale=to_fp32(max(state.scale * state.backoff_factor, state.min_scale)),
            growth_tracker=0,
            skips_in_a_row=state.skips_in_a_row + 1,
        )
    tracker = state.growth_tracker + 1
    # Equal, and not at least: an interval set below the tracker ends all growth, as in GradScaler.
    if tracker != state.growth_interval:
        return replace(state, growth_tracker=tracker, skips_in_a_row=0)
    larger = to_fp32(state.scale * state.growth_factor)
    scale = larger if math.isfinite(larger) else state.scale
    return replace(state, scale=scale, growth_tracker=0, skips_in_a_row=0)


def to_fp32(x: float) -> float:
    """Round to FP32. The scale is an FP32 number, and that is how halving it can reach zero."""
    return torch.tensor(x, dtype=torch.float32).item()
