"""What state each optimizer's gradients are in: the one thing all errors of order turn on.

Gradients go round in a circle: cleared, filled by one or more backward passes, perhaps unscaled,
used by a step, cleared again. Beside that runs GradScaler's own idea of where it stands, which
`update()` resets and `zero_grad` does not. Both are followed here, from the trace alone, as a pure
state machine: `advance(state, event)` gives the next state.

Nothing is judged while gradients are made. In a GAN the generator's backward also puts gradients
into the discriminator, which clears them before its own pass: an oddity, but no error. So the
rules look at the state in which gradients are *used*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mptutor.audit.events import (
    Backward,
    Clip,
    Event,
    GradientEdit,
    OptimizerStep,
    ScalerStep,
    SchedulerStep,
    Unscale,
    Update,
    ZeroGrad,
)
from mptutor.audit.trace import Trace


@dataclass(frozen=True)
class Part:
    """One backward pass within a sum of gradients, and how often its scaler had updated by then."""

    backward: Backward
    updates: int


@dataclass(frozen=True)
class Gradients:
    """The gradients of one optimizer.

    Attributes
    ----------
    parts : the backward passes they are the sum of
    unscaled : the unscale_ that divided them
    used : the step that consumed them
    late : a backward that added to them after they had been unscaled
    stale : a backward that added to them after they had been used
    edited : whether the user's own code changed them in place
    scaler_unscaled, scaler_stepped : what GradScaler has done for this optimizer since its
        last update(), whether or not to these same gradients
    skipped : the last step, if it was skipped
    discarded : a backward whose gradients were cleared before any step used them
    stepped_by : the scaler of the last step
    """

    parts: tuple[Part, ...] = ()
    unscaled: Unscale | None = None
    used: ScalerStep | OptimizerStep | None = None
    late: Backward | None = None
    stale: Backward | None = None
    edited: bool = False
    scaler_unscaled: Unscale | None = None
    scaler_stepped: ScalerStep | None = None
    skipped: ScalerStep | None = None
    discarded: Backward | None = None
    stepped_by: str | None = None

    @property
    def scaled(self) -> bool:
        """Whether any loss in them went through a scaler."""
        return any(part.backward.scaler for part in self.parts)

    @property
    def still_scaled(self) -> bool:
        """Whether they still carry the scale."""
        return self.scaled and self.unscaled is None

    @property
    def scales(self) -> list[float]:
        """The different loss scales in them."""
        return sorted({p.backward.scale for p in self.parts if p.backward.scale is not None})

    @property
    def scaled_by_hand(self) -> float | None:
        """The loss scale every loss in them was multiplied by, unless it was divided out again."""
        factors = {part.backward.factor for part in self.parts}
        factor = factors.pop() if len(factors) == 1 and not self.edited else None
        return factor if looks_like_a_scale(factor) else None

    def cleared(self) -> Gradients:
        """Return the state after zero_grad: GradScaler doesn't notice."""
        return Gradients(
            scaler_unscaled=self.scaler_unscaled,
            scaler_stepped=self.scaler_stepped,
            skipped=self.skipped,
            discarded=self.parts[-1].backward if self.parts and self.used is None else None,
            stepped_by=self.stepped_by,
        )


@dataclass(frozen=True)
class State:
    """All gradients at one moment, and the number of updates of each scaler."""

    gradients: dict[str, Gradients] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)

    def of(self, optimizer: str) -> Gradients:
        """Return the gradients of an optimizer; none, if it has not been seen yet."""
        return self.gradients.get(optimizer, Gradients())

    def having(self, optimizer: str, gradients: Gradients) -> State:
        """Return this state with other gradients for one optimizer."""
        return replace(self, gradients={**self.gradients, optimizer: gradients})

    def outdated(self, optimizer: str, scaler: str) -> list[Part]:
        """Return the parts made before the scaler's latest update."""
        now = self.updates.get(scaler, 0)
        return [
            part
            for part in self.of(optimizer).parts
            if part.backward.scaler == scaler and part.updates != now
        ]


def looks_like_a_scale(factor: float | None) -> bool:
    """Say whether a loss's factor is a loss scale: weights of losses are no powers of two."""
    return factor is not None and factor >= 64 and math.log2(factor).is_integer()


def advance(state: State, event: Event) -> State:
    """Return the state after `event`."""
    match event:
        case ZeroGrad(optimizers=names):
            for name in names:
                old = state.of(name)
                now = replace(old.cleared(), discarded=None) if event.within_step else old.cleared()
                state = state.having(name, now)
        case Backward(error=None):
            for name, how in event.fed.items():
                state = state.having(name, _after_backward(state, name, how, event))
        case Unscale(optimizer=name, error=None):
            now = replace(state.of(name), unscaled=event, scaler_unscaled=event)
            state = state.having(name, now)
        case ScalerStep(optimizer=name, error=None):
            now = replace(
                state.of(name),
                used=event,
                scaler_stepped=event,
                stepped_by=event.scaler,
                skipped=None if event.took_place else event,
            )
            state = state.having(name, now)
        case OptimizerStep(optimizer=name, through=None):
            state = state.having(name, replace(state.of(name), used=event, skipped=None))
        case GradientEdit(optimizers=names):
            for name in names:
                state = state.having(name, replace(state.of(name), edited=True))
        case SchedulerStep(optimizer=name):
            state = state.having(name, replace(state.of(name), skipped=None))
        case Update(error=None):
            state = _after_update(state, event.scaler)
    return state


def _after_backward(state: State, name: str, how: str, event: Backward) -> Gradients:
    old = state.of(name)
    if how == "fresh" or event.before.get(name) == 0:
        old = old.cleared()
    elif old.used is not None:
        old = replace(old, stale=event)
    elif old.unscaled is not None:
        old = replace(old, late=event)
    part = Part(event, state.updates.get(event.scaler or "", 0))
    return replace(old, parts=(*old.parts, part))


def _after_update(state: State, scaler: str) -> State:
    """update() makes the scaler forget which optimizers it unscaled and stepped."""
    for name, gradients in state.gradients.items():
        unscaled, stepped = gradients.scaler_unscaled, gradients.scaler_stepped
        if unscaled is not None and unscaled.scaler == scaler:
            unscaled = None
        if stepped is not None and stepped.scaler == scaler:
            stepped = None
        state = state.having(
            name, replace(gradients, scaler_unscaled=unscaled, scaler_stepped=stepped)
        )
    return replace(state, updates={**state.updates, scaler: state.updates.get(scaler, 0) + 1})


def replay(trace: Trace) -> Iterator[tuple[Event, State]]:
    """Go through the trace: each event with the state just before it."""
    state = State()
    for event in trace.events:
        yield event, state
        state = advance(state, event)


def optimizers_of(event: Event) -> list[str]:
    """Return the optimizers whose gradients an event is about."""
    match event:
        case Clip(optimizers=names) | ZeroGrad(optimizers=names):
            return names
        case Unscale() | ScalerStep() | OptimizerStep() | SchedulerStep():
            return [event.optimizer]
        case GradientEdit(optimizers=names):
            return names
    return []
