"""A loss scaler replayed over a recorded history of gradients: the scaler simulator's arithmetic.

A step overflows if its largest gradient times the scale reaches 65520, where FP16 rounds to
infinity, or if it is NaN. Then `mptutor.scaler_state.next_state` decides. This is nearly what a
real training would do: there, a skipped step would also change the gradients after it.

What a scale that has fallen too far does follows GradScaler too. It multiplies the gradients by
``1 / scale``, in FP32. From a scale of 2^-128 down that is infinite, and a step whose gradients
are finite passes the check first and is multiplied afterwards: 0 × inf is NaN, in every weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mptutor.formats import FP16
from mptutor.scaler_state import ScalerState, next_state, to_fp32

#: How much larger the gradients of a spike are than those recorded.
SPIKE = 1000.0


@dataclass(frozen=True)
class SimulatedStep:
    """One step.

    Attributes
    ----------
    scale, growth_tracker
        Before the step.
    gradient
        The largest, unscaled; NaN in a broken batch and once the weights are NaN.
    kind
        ``"ran"``; ``"skipped"``; ``"empty"``: ran, but even the largest gradient had become 0;
        ``"ruined"``: ran and wrote NaN into the weights; ``"dead"``: skipped since they are NaN.
    """

    scale: float
    growth_tracker: int
    gradient: float
    kind: str

    @property
    def skipped(self) -> bool:
        """Whether the optimizer was left out."""
        return self.kind in ("skipped", "dead")


def simulate(
    gradients: Sequence[float],
    state: ScalerState,
    spikes: Collection[int] = (),
    nans: Collection[int] = (),
) -> tuple[tuple[SimulatedStep, ...], ScalerState]:
    """Run the scaler over all gradients; return the steps and the state after the last.

    ``spikes`` and ``nans`` are steps, counted from 0; a step that is in both is NaN.
    """
    steps: list[SimulatedStep] = []
    is_dead = False
    for i, recorded in enumerate(gradients):
        gradient = recorded * SPIKE if i in spikes else recorded
        if is_dead or i in nans:
            gradient = math.nan
        kind = kind_of(gradient, state.scale, is_dead)
        steps.append(SimulatedStep(state.scale, state.growth_tracker, gradient, kind))
        state = next_state(state, found_inf=steps[-1].skipped)
        is_dead = is_dead or kind == "ruined"
    return tuple(steps), state


def kind_of(gradient: float, scale: float, is_dead: bool = False) -> str:
    """Say what becomes of a step; see `SimulatedStep`."""
    if is_dead:
        return "dead"
    # Not "at least": NaN compares false with everything.
    if not gradient * scale < FP16.overflow_threshold:
        return "skipped"
    if scale == 0 or math.isinf(to_fp32(1 / scale)):
        return "ruined"
    return "empty" if gradient * scale <= FP16.underflow_threshold else "ran"
