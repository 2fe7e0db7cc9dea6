"""Faults of range that show in the loss scale, and in the gradients it carries."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mptutor.audit.events import Backward, OptimizerStep, Update
from mptutor.audit.events_forward import LayerGradient
from mptutor.audit.rules import CONSEQUENCE, NOTE, SUSPECT, WRONG, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]

#: So many skips in a row and no step at all are more than a scale finding its place: from 65536
#: they lead below 256, and a healthy loop in FP16 rarely needs less than 1024.
MANY_SKIPS = 8


@dataclass(frozen=True)
class ScaleHistory:
    """The updates of one scaler, without those by hand, and how many it skipped at the start."""

    updates: list[Update]

    @property
    def first_skips(self) -> int:
        """Number of updates before the first that didn't lower the scale."""
        held = (i for i, update in enumerate(self.updates) if not lowered(update))
        return next(held, len(self.updates))

    @property
    def later_skips(self) -> list[Update]:
        """Skips after the scale had settled once."""
        return [update for update in self.updates[self.first_skips :] if lowered(update)]


def lowered(update: Update) -> bool:
    """Did this update follow a skipped step? At 0 the scale cannot fall any further."""
    return update.after < update.before or update.before == 0


def scale_histories(evidence: Evidence) -> list[ScaleHistory]:
    """Return the history of every scaler's scale."""
    histories: dict[str, list[Update]] = {}
    for update in evidence.of(Update):
        known = update.before is not None and update.after is not None
        if known and not update.given and not update.error:
            histories.setdefault(update.scaler, []).append(update)
    return [ScaleHistory(updates) for updates in histories.values()]


@rule(
    WRONG,
    lesson=6,
    cause="The loss scale fell below 1: the inf or NaN does not come from the scale.",
    repair="for name, module in model.named_modules():   # where does it begin?\n"
    "    module.register_forward_hook(lambda m, i, o: print(m, o.isfinite().all()))",
    order=CONSEQUENCE,
)
def scale_collapsed(evidence: Evidence) -> Sightings:
    """Something is not finite however small the scale: the forward pass, the loss or the data."""
    for history in scale_histories(evidence):
        for update in history.updates:
            if update.after < 1 <= update.before:
                where = _where_it_breaks(evidence, update)
                yield seen_at(update, f"the scale went from {update.before:g} to less; {where}")


@rule(
    WRONG,
    lesson=6,
    cause="The loss scale is exactly 0: the next healthy step divides by it and writes NaN into "
    "the weights.",
    repair="if scaler.get_scale() < 1:\n    raise RuntimeError('inf or NaN in every step')",
    order=CONSEQUENCE,
)
def scale_is_zero(evidence: Evidence) -> Sightings:
    """GradScaler halves without end. 0 times a loss is a gradient of 0: finite, so it steps."""
    for history in scale_histories(evidence):
        for count, update in enumerate(history.updates, 1):
            if update.after == 0 < update.before:
                yield seen_at(update, f"after {count} updates, the last from {update.before:g}")


@rule(
    WRONG,
    lesson=6,
    cause="Every step was skipped: the weights have not changed.",
    repair="assert loss.isfinite()   # if it's finite: lower init_scale; if not: mend that first",
    order=CONSEQUENCE,
)
def every_step_skipped(evidence: Evidence) -> Sightings:
    """Either the scale starts far too high, or something is not finite at any scale."""
    for history in scale_histories(evidence):
        first, last = history.updates[0], history.updates[-1]
        if history.first_skips == len(history.updates) >= MANY_SKIPS and last.after >= 1:
            yield seen_at(
                first,
                f"{len(history.updates)} of {len(history.updates)}, the scale is now "
                f"{last.after:g}; {_where_it_breaks(evidence, last)}",
            )


@rule(
    SUSPECT,
    lesson=6,
    cause="Steps keep being skipped after the scale had settled.",
    repair="torch.autocast(device_type, dtype=torch.bfloat16)   # or FP32 for the layer that "
    "overflows",
    order=CONSEQUENCE,
)
def skips_persist(evidence: Evidence) -> Sightings:
    """One skip in 2,000 steps is how the scaler probes; one in ten means it cannot settle."""
    for history in scale_histories(evidence):
        skips, settled = history.later_skips, len(history.updates) - history.first_skips
        too_many = settled >= MANY_SKIPS and len(skips) > max(2, settled / 10)
        if too_many and not _grows_eagerly(history):
            where = _where_it_breaks(evidence, skips[-1])
            yield seen_at(skips[-1], f"{len(skips)} of {settled} steps; {where}")


def _grows_eagerly(history: ScaleHistory) -> bool:
    """With a growth interval of a few steps, a skip after each growth is to be expected."""
    growths = sum(1 for update in history.updates if update.after > update.before)
    return growths >= len(history.later_skips)


@rule(
    NOTE,
    lesson=6,
    cause="The first steps were skipped while the scale found its place: that is harmless.",
    repair="checkpoint['scaler'] = scaler.state_dict()   # so that a resumed run needs no search",
)
def first_steps_skipped(evidence: Evidence) -> Sightings:
    """The scale starts high and is halved until the gradients fit."""
    for history in scale_histories(evidence):
        skips = history.first_skips
        if 0 < skips < len(history.updates) and history.updates[skips].before >= 1:
            settled = history.updates[skips].before
            yield seen_at(history.updates[0], f"{skips} skipped, then a scale of {settled:g}")


def _where_it_breaks(evidence: Evidence, update: Update) -> str:
    """Say where in the last backward pass before `update` the first inf or NaN showed."""
    before = evidence.trace.events[: evidence.index(update)]
    backward = next((e for e in reversed(before) if isinstance(e, Backward)), None)
    if backward is None:
        return "no backward pass was seen"
    if not backward.loss_is_finite and not _scaled_out_of_range(backward):
        return "the loss itself was not finite"
    layers = list(evidence.after(backward, LayerGradient, until=Backward))
    if not layers:
        return "the loss was finite; gradients of layers were not looked at in this step"
    first = next((i for i, layer in enumerate(layers) if not layer.finite), None)
    if first is None:
        return "the loss was finite, and so was the gradient at every layer"
    if first == 0:
        return f"the loss was finite, its gradient at the last layer '{layers[0].name}' was not"
    return f"the loss was finite, its gradient was not from layer '{layers[first].name}' on"


def _scaled_out_of_range(backward: Backward) -> bool:
    return backward.scale is not None and backward.scale > 2.0**64


@rule(
    WRONG,
    lesson=4,
    cause="An optimizer step left inf or NaN in the weights.",
    repair="scaler.step(optimizer)   # a GradScaler skips steps with inf or NaN in the gradients;\n"
    "# keep the weights in FP32, autocast makes the 16-bit copies",
    order=CONSEQUENCE,
)
def weights_not_finite(evidence: Evidence) -> Sightings:
    """From here on every output is NaN."""
    for step in evidence.of(OptimizerStep):
        if step.weights_finite is not None and not step.weights_finite:
            what = f"{step.algorithm} with {'/'.join(step.dtypes)} parameters"
            yield seen_at(step, f"{what}, lr {step.lr:g}")
            return
