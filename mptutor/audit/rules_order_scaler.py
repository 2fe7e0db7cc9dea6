"""Errors of order in using the scaler: its update, what it has to step on, its checkpoint."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

from collections.abc import Iterator

from mptutor.audit.events import (
    Event,
    Saved,
    Scale,
    ScalerStep,
    StateLoaded,
    StateTaken,
    Unscale,
    Update,
)
from mptutor.audit.rules import SUSPECT, WRONG, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]


@rule(
    WRONG,
    lesson=6,
    cause="scaler.update() is missing: the scaler has stepped and does not know that it is over.",
    repair="scaler.step(optimizer)\nscaler.update()",
)
def update_missing(evidence: Evidence) -> Sightings:
    """Without it the scale never moves, and the next unscale_ or step raises."""
    for event, gradients in evidence.about(Unscale, ScalerStep):
        if event.error and gradients.scaler_stepped is not None:
            yield seen_at(event, f"it raised: {event.error}")


@rule(
    WRONG,
    lesson=10,
    cause="scaler.update() is called without a step before it.",
    repair="if last_micro_batch:\n    scaler.step(optimizer)\n    scaler.update()",
)
def update_without_step(evidence: Evidence) -> Sightings:
    """With accumulation, update only on the micro-batch that steps."""
    for update, state in evidence.moments:
        if isinstance(update, Update) and update.error and not update.given:
            waiting = [g for g in state.gradients.values() if g.still_scaled and g.used is None]
            if waiting:
                yield seen_at(update, f"it raised: {update.error}")


@rule(
    WRONG,
    lesson=10,
    cause="The scale changed while gradients were being accumulated: the sum has parts of "
    "different scales, and is divided by one.",
    repair="if last_micro_batch:\n    scaler.step(optimizer)\n    scaler.update()   # only here",
)
def scale_changed_in_accumulation(evidence: Evidence) -> Sightings:
    """One division cannot undo two scales."""
    for unscale, state in evidence.moments:
        if isinstance(unscale, Unscale) and not unscale.error:
            gradients = state.of(unscale.optimizer)
            outdated = state.outdated(unscale.optimizer, unscale.scaler)
            if outdated and len(gradients.scales) > 1 and gradients.stale is None:
                scales = ", ".join(f"{s:g}" for s in gradients.scales)
                yield seen_at(unscale, f"the gradients of {unscale.optimizer} carry {scales}")


@rule(
    WRONG,
    lesson=10,
    cause="scaler.update() ran between backward and step: the gradients are divided by another "
    "scale than the one they carry.",
    repair="scaler.step(first_optimizer)\nscaler.step(second_optimizer)\n"
    "scaler.update()   # once, after the last of them",
)
def update_before_step(evidence: Evidence) -> Sightings:
    """As long as the scale happens not to change, nothing shows."""
    latest: dict[str, Update] = {}
    for event, state in evidence.moments:
        if isinstance(event, Update) and not event.error:
            latest[event.scaler] = event
        elif isinstance(event, Unscale) and not event.error:
            gradients = state.of(event.optimizer)
            outdated = state.outdated(event.optimizer, event.scaler)
            if outdated and len(gradients.scales) < 2 and gradients.stale is None:
                yield _outdated(event, gradients.scales, latest[event.scaler])


def _outdated(unscale: Unscale, scales: list[float], update: Update) -> Sighting:
    """Point to the update: it is what stands in the wrong place."""
    carried, now = scales[0] if scales else None, update.after
    then = f"{unscale.optimizer} is unscaled only at {unscale.site}"
    if carried == now or carried is None or now is None:
        luck = f"the scale was {now:g} both times" if now else "the scales are not known"
        seen = f"{then}; {luck}, the next change of it does harm"
        return seen_at(update, seen, level=SUSPECT)
    return seen_at(update, f"{then}; its gradients carry {carried:g} and are divided by {now:g}")


@rule(
    WRONG,
    lesson=10,
    cause="No parameter of this optimizer has a gradient.",
    repair="optimizer = torch.optim.AdamW(model.parameters())   # those the loss depends on",
)
def no_gradients(evidence: Evidence) -> Sightings:
    """Wrong parameters, a detached graph, or a part of the model that was not used this time."""
    for step, gradients in evidence.about(ScalerStep):
        known = gradients.scaler_stepped is not None or gradients.discarded is not None
        if step.error and step.grads == 0 and not known:
            yield seen_at(step, f"all of {step.optimizer}'s gradients are None: {step.error}")


@rule(
    WRONG,
    lesson=10,
    cause="The checkpoint has the optimizer's state but not the scaler's.",
    repair='checkpoint["scaler"] = scaler.state_dict()\ntorch.save(checkpoint, path)',
)
def scaler_not_saved(evidence: Evidence) -> Sightings:
    """A run resumed from it starts again at the initial scale."""
    for save in evidence.of(Saved):
        if "optimizer" in save.found and "scaler" not in save.found and _scaler_used(evidence):
            yield seen_at(save, "torch.save got an optimizer's state_dict and no scaler's")


def _scaler_used(evidence: Evidence) -> bool:
    return any(True for _ in evidence.of(Scale))


@rule(
    SUSPECT,
    lesson=10,
    cause="Training goes on from a saved state, but the scaler starts anew.",
    repair='scaler.load_state_dict(checkpoint["scaler"])   # before the first scale()',
)
def scaler_not_restored(evidence: Evidence) -> Sightings:
    """It costs skipped steps until the scale has found its place again."""
    restored: set[str] = set()
    known: set[str] = set()
    optimizer_loaded = False
    taken: set[str] = set()
    for event in evidence.of(StateLoaded, StateTaken, Scale):
        match event:
            case StateLoaded(what="scaler"):
                restored.add(event.name)
            case StateLoaded(what="optimizer"):
                optimizer_loaded = True
            case StateTaken():
                taken.add(event.scaler)
            case Scale() if event.scaler not in known:
                resumed = optimizer_loaded or _fell_elsewhere(evidence, event, taken)
                if resumed and event.scaler not in restored and event.scale == event.init_scale:
                    yield seen_at(event, f"{event.scaler} starts at {event.scale:g} again")
                known.add(event.scaler)


@rule(
    SUSPECT,
    lesson=6,
    cause="An optimizer goes on with another GradScaler than before: the scale starts anew.",
    repair="scaler = torch.amp.GradScaler(device)   # once, before the first epoch",
)
def scaler_replaced(evidence: Evidence) -> Sightings:
    """Each new scaler searches for its scale again, and its count of good steps is lost."""
    for step, gradients in evidence.about(ScalerStep):
        before = gradients.stepped_by
        if before is not None and before != step.scaler:
            yield seen_at(step, f"{step.optimizer}: {before} before, now {step.scaler}")


@rule(
    WRONG,
    lesson=6,
    cause="GradScaler does not take optimizers that need a closure.",
    repair="optimizer = torch.optim.AdamW(model.parameters())   # or bfloat16 without a scaler",
)
def closure_with_scaler(evidence: Evidence) -> Sightings:
    """It would have to unscale and check within every evaluation of the closure."""
    for step in evidence.of(ScalerStep):
        if step.error and "closure" in step.error.lower():
            yield seen_at(step, f"it raised: {step.error}")


def _fell_elsewhere(evidence: Evidence, now: Event, taken: set[str]) -> bool:
    """Say whether another scaler, whose state was taken, had found a lower scale before."""
    for update in evidence.of(Update):
        if update is now or evidence.index(update) > evidence.index(now):
            return False
        lower = None not in (update.before, update.after) and update.after < update.before
        if lower and update.scaler in taken and update.scaler != now.scaler:
            return True
    return False
