"""Errors of order: an optimizer's step on gradients that are not what it should get."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

import math
from collections.abc import Iterator

from mptutor.audit.events import Clip, OptimizerStep, ScalerStep
from mptutor.audit.gradients import looks_like_a_scale
from mptutor.audit.rules import SUSPECT, WRONG, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]


@rule(
    SUSPECT,
    lesson=10,
    cause="Gradients are clipped after the step that used them, so clipping has no effect.",
    repair="scaler.unscale_(optimizer)\nclip_grad_norm_(model.parameters(), limit)\n"
    "scaler.step(optimizer)\nscaler.update()",
)
def clip_after_step(evidence: Evidence) -> Sightings:
    """Clipping belongs between backward and step."""
    for clip, gradients in evidence.about(Clip):
        if gradients.used is not None and gradients.stale is None:
            yield seen_at(clip, f"{', '.join(clip.optimizers)} had stepped on them already")


@rule(
    WRONG,
    lesson=10,
    cause="Gradients are cleared between backward and step: the step has nothing to use.",
    repair="optimizer.zero_grad()\nscaler.scale(loss).backward()\nscaler.step(optimizer)",
)
def cleared_before_step(evidence: Evidence) -> Sightings:
    """The loss never falls, and a scaler may complain that it saw no gradient."""
    for step, gradients in evidence.about(ScalerStep, OptimizerStep):
        lost = gradients.discarded
        if lost is not None and not gradients.parts and gradients.used is None:
            yield seen_at(step, f"the gradients of the backward at {lost.site} were cleared")


@rule(
    WRONG,
    lesson=10,
    cause="optimizer.step() is called on gradients that are still multiplied by the loss scale.",
    repair="scaler.step(optimizer)   # instead of optimizer.step()\nscaler.update()",
)
def step_on_scaled(evidence: Evidence) -> Sightings:
    """The step is larger by the scale, and an inf goes straight into the weights."""
    for step, gradients in _direct_steps(evidence):
        if gradients.still_scaled and gradients.used is None and not _divided(step, gradients):
            scale = gradients.scales[-1] if gradients.scales else math.nan
            yield seen_at(step, f"{step.optimizer} stepped on gradients multiplied by {scale:g}")


def _divided(step: OptimizerStep, gradients) -> bool:
    """Say whether the user's own code may have divided the gradients, as with a static scale."""
    return gradients.edited or (step.edited and not step.calls_seen)


@rule(
    WRONG,
    lesson=10,
    cause="optimizer.step() is called besides scaler.step(), on the same gradients and past the "
    "check for inf and NaN.",
    repair="scaler.step(optimizer)   # calls optimizer.step() itself, unless it has to skip\n"
    "scaler.update()",
)
def step_twice(evidence: Evidence) -> Sightings:
    """One backward is applied twice, the second time even if the first was skipped."""
    for step, gradients in _direct_steps(evidence):
        if gradients.scaled and isinstance(gradients.used, ScalerStep):
            skipped = "" if gradients.used.took_place else ", which scaler.step had skipped"
            yield seen_at(step, f"{step.optimizer} stepped a second time on one backward{skipped}")


@rule(
    SUSPECT,
    lesson=10,
    cause="optimizer.step() follows unscale_: gradients with inf or NaN would be applied.",
    repair="scaler.step(optimizer)   # doesn't unscale a second time\nscaler.update()",
)
def step_past_inf_check(evidence: Evidence) -> Sightings:
    """Harmless only where the loop checks the gradients itself."""
    for step, gradients in _direct_steps(evidence):
        if gradients.scaled and gradients.unscaled and gradients.used is None:
            yield seen_at(
                step,
                f"{step.optimizer} stepped without scaler.step; "
                "a check of your own before it would clear this",
            )


def _direct_steps(evidence: Evidence):
    """Steps that no scaler called."""
    return ((e, g) for e, g in evidence.about(OptimizerStep) if e.through is None)


@rule(
    SUSPECT,
    lesson=5,
    cause="The loss was multiplied by a power of two, and nothing divides the gradients by it.",
    repair="for p in model.parameters():\n    p.grad.div_(scale)\noptimizer.step()",
)
def static_scale_not_divided(evidence: Evidence) -> Sightings:
    """A static loss scale by hand, half done."""
    for step, gradients in _direct_steps(evidence):
        factors = {p.backward.factor for p in gradients.parts}
        untouched = step.calls_seen and not step.edited and not gradients.edited
        if untouched and not gradients.scaled and any(map(looks_like_a_scale, factors)):
            yield seen_at(step, f"the loss was multiplied by {max(f for f in factors if f):g}")


@rule(
    SUSPECT,
    lesson=10,
    cause="Gradients of the step before are still there when the next ones are added.",
    repair="optimizer.zero_grad()   # before the next backward",
)
def no_zero_grad(evidence: Evidence) -> Sightings:
    """Used gradients are used again, in the next sum."""
    for step, gradients in evidence.about(ScalerStep, OptimizerStep):
        direct = isinstance(step, ScalerStep) or step.through is None
        if direct and gradients.stale is not None:
            mixed = ", scaled ones to unscaled ones" if gradients.stale.scaler else ""
            yield seen_at(
                gradients.stale, f"backward added to gradients {step.optimizer} had used{mixed}"
            )
