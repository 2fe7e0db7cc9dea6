"""Errors of order: what is done to gradients between backward and step."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

import math
from collections.abc import Iterator

from mptutor.audit.events import (
    Backward,
    Clip,
    EnterAutocast,
    Event,
    GradientEdit,
    OptimizerStep,
    ScalerStep,
    SchedulerStep,
    Unscale,
)
from mptutor.audit.events_forward import Call, Forward
from mptutor.audit.gradients import Gradients
from mptutor.audit.rules import NOTE, SUSPECT, WRONG, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]


@rule(
    WRONG,
    lesson=10,
    cause="Gradients are clipped while they are still multiplied by the loss scale.",
    repair="scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), limit)",
)
def clip_before_unscale(evidence: Evidence) -> Sightings:
    """The limit meets gradients that are larger by the scale, so almost nothing is left of them."""
    for clip, gradients in _clipped_gradients(evidence):
        if gradients.used is not None or clip.limit == math.inf:
            continue
        if gradients.still_scaled:
            scale = gradients.scales[-1] if gradients.scales else math.nan
            yield seen_at(clip, _clipped(clip, scale), level=SUSPECT if scale == 1 else None)
        elif gradients.scaled_by_hand is not None and _divided_later(evidence, clip):
            yield seen_at(clip, _clipped(clip, gradients.scaled_by_hand))


def _clipped_gradients(evidence: Evidence) -> Iterator[tuple[Clip, Gradients]]:
    """Go through what was clipped, but for what was unscaled as the gradients of another optimizer.

    An optimizer that nobody uses may hold the same weights as the one that is unscaled and steps.
    """
    for clip, state in evidence.moments:
        if isinstance(clip, Clip):
            for name in clip.optimizers:
                if not any(state.of(other).unscaled for other in clip.shared.get(name, ())):
                    yield clip, state.of(name)


def _divided_later(evidence: Evidence, clip: Clip) -> bool:
    """Say whether the user's own code changes these gradients between the clipping and the step."""
    for edit in evidence.after(clip, GradientEdit, until=OptimizerStep):
        if not edit.adds and set(edit.optimizers) & set(clip.optimizers):
            return True
    return False


def _clipped(clip: Clip, scale: float) -> str:
    if clip.limit is None:
        return f"{clip.how} changed gradients that carry a scale of {scale:g}"
    if clip.norm is None:
        return f"the limit {clip.limit:g} was applied to gradients multiplied by {scale:g}"
    return (
        f"the limit {clip.limit:g} was applied to a norm of {clip.norm:.3g}, "
        f"which is the true norm of {clip.norm / scale:.3g} times the scale of {scale:g}"
    )


@rule(
    WRONG,
    lesson=10,
    cause="unscale_ is called twice on the same gradients.",
    repair="if last_micro_batch:\n    scaler.unscale_(optimizer)\n    ...\n"
    "    scaler.step(optimizer)\n    scaler.update()",
)
def unscale_twice(evidence: Evidence) -> Sightings:
    """Once for each step: with accumulation, on the micro-batch that steps."""
    for unscale, gradients in evidence.about(Unscale):
        twice = unscale.error and gradients.scaler_unscaled and not gradients.scaler_stepped
        if twice and gradients.unscaled is gradients.scaler_unscaled:
            yield seen_at(unscale, f"it raised: {unscale.error}")


@rule(
    WRONG,
    lesson=10,
    cause="A batch was given up between unscale_ and update: the scaler still believes that the "
    "gradients of this optimizer are unscaled.",
    repair="scaler.step(optimizer)   # it skips by itself if there is an inf or a NaN\n"
    "scaler.update()          # also for a batch you skip yourself",
)
def batch_abandoned(evidence: Evidence) -> Sightings:
    """The next step would not unscale the new gradients: it uses them with the scale in them."""
    for event, gradients in evidence.about(Unscale, ScalerStep):
        if isinstance(event, Unscale) and not event.error:
            continue
        old = gradients.scaler_unscaled
        if old and not gradients.scaler_stepped and gradients.unscaled is None and gradients.parts:
            then = f"it raised: {event.error}" if event.error else "step did not unscale them"
            yield seen_at(event, f"unscale_ in step {old.step} was followed by no update; {then}")


@rule(
    WRONG,
    lesson=10,
    cause="Scaled gradients are added to gradients that have been unscaled already.",
    repair="# unscale_ once, after the last backward of the step\n"
    "scaler.scale(loss).backward()\nscaler.unscale_(optimizer)",
)
def backward_after_unscale(evidence: Evidence) -> Sightings:
    """The sum has parts that differ by the scale, and nothing can take them apart again."""
    for step, gradients in evidence.about(ScalerStep, OptimizerStep):
        late = gradients.late
        if late is not None and late.scaler and gradients.used is None:
            yield seen_at(late, f"{step.optimizer} had been unscaled, then this backward added")


@rule(
    SUSPECT,
    lesson=10,
    cause="A term that does not carry the loss scale is added to gradients that do.",
    repair="scaler.unscale_(optimizer)\nfor p in model.parameters():\n"
    "    p.grad.add_(p.detach(), alpha=weight_decay)",
)
def added_to_scaled(evidence: Evidence) -> Sightings:
    """Weight decay or noise by hand, say: it is smaller by the scale than it should be."""
    for edit, gradients in evidence.about(GradientEdit):
        if edit.adds and gradients.still_scaled and gradients.used is None:
            scale = gradients.scales[-1] if gradients.scales else math.nan
            yield seen_at(edit, f"{edit.how} on gradients multiplied by {scale:g}")


@rule(
    WRONG,
    lesson=10,
    cause="A loss reaches gradients without having gone through the scaler, "
    "yet they are divided by the scale.",
    repair="scaler.scale(loss).backward()   # this loss too",
)
def loss_not_scaled(evidence: Evidence) -> Sightings:
    """Its share is smaller by the scale than it should be: nothing, in effect."""
    for step, gradients in evidence.about(ScalerStep):
        plain = [p.backward for p in gradients.parts if not p.backward.scaler]
        if plain and gradients.used is None:
            of = f"{len(plain)} of {len(gradients.parts)} backward passes for {step.optimizer}"
            yield seen_at(plain[0], f"{of} were not scaled")


@rule(
    WRONG,
    lesson=10,
    cause="One scaler scales the loss, another unscales the gradients.",
    repair="scaler = torch.amp.GradScaler(device)   # one for the whole training",
)
def two_scalers(evidence: Evidence) -> Sightings:
    """Their scales agree only as long as neither has changed."""
    for unscale, gradients in evidence.about(Unscale):
        others = {p.backward.scaler for p in gradients.parts} - {unscale.scaler, None}
        if others:
            yield seen_at(unscale, f"scaled by {others.pop()}, unscaled by {unscale.scaler}")


@rule(
    SUSPECT,
    lesson=7,
    cause="backward() runs inside autocast.",
    repair="with torch.autocast(device_type, dtype):\n    loss = ...\n"
    "scaler.scale(loss).backward()   # outside: it uses the forward's dtypes by itself",
)
def backward_in_autocast(evidence: Evidence) -> Sightings:
    """Backward of custom functions is then cast a second time; torch advises against it."""
    for _, gradients in evidence.about(ScalerStep, OptimizerStep):
        for backward in (part.backward for part in gradients.parts):
            if backward.autocast and gradients.used is None:
                on = f"autocast({backward.autocast}) was on"
                yield seen_at(backward, f"{on} when backward began")


@rule(
    WRONG,
    lesson=7,
    cause="The optimizer steps inside an autocast block that goes on: the next forward uses the "
    "old 16-bit copies of the weights.",
    repair="for x, y in loader:\n"
    "    with torch.autocast(device_type, dtype):   # one block a step\n        loss = ...",
)
def stale_weight_cache(evidence: Evidence) -> Sightings:
    """Autocast keeps its casts of FP32 weights until the outermost block ends."""
    stepped: dict[int, OptimizerStep] = {}
    for event in evidence.of(OptimizerStep, EnterAutocast, Forward, Call, Backward):
        match event:
            case EnterAutocast(depth=1):
                stepped.pop(event.thread, None)
            case OptimizerStep() if event.depth and event.cache:
                stepped[event.thread] = event
            case Forward() | Call() | Backward() if event.autocast:
                step = stepped.get(event.thread)
                if step is not None and _in_block_of(step, event):
                    yield seen_at(step, "the block was still open at the next forward")
                    del stepped[event.thread]


def _in_block_of(step: OptimizerStep, event: Event) -> bool:
    inside = isinstance(event, Backward) or event.depth > 0
    return inside and event.region == step.region


@rule(
    WRONG,
    lesson=10,
    cause="A penalty is computed from gradients that still carry the loss scale.",
    repair="grads = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)\n"
    "grads = [g / scaler.get_scale() for g in grads]   # out of place",
)
def penalty_on_scaled_gradients(evidence: Evidence) -> Sightings:
    """The penalty is wrong by the scale or its square."""
    for call in evidence.of(Call):
        if call.scaled_grad_site is not None:
            source = f"autograd.grad of a scaled loss at {call.scaled_grad_site}"
            yield seen_at(call, f"{call.name}() takes the result of {source}, not yet divided")


@rule(
    NOTE,
    lesson=10,
    cause="The learning rate schedule moves on although the step was skipped.",
    repair="scale = scaler.get_scale()\nscaler.step(optimizer)\nscaler.update()\n"
    "if scaler.get_scale() >= scale:\n    scheduler.step()",
)
def scheduler_after_skip(evidence: Evidence) -> Sightings:
    """PyTorch then warns about the order of the two calls, which is right."""
    for scheduler, gradients in evidence.about(SchedulerStep):
        if gradients.skipped is not None:
            where = f"scaler.step in step {gradients.skipped.step}"
            yield seen_at(scheduler, f"{where} found an inf or a NaN and skipped")
