"""Faults of range that show in the loss scale, and in the gradients it carries."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mptutor.audit.events import (
    Backward,
    Forward,
    LayerGradient,
    OptimizerStep,
    Scale,
    Update,
)
from mptutor.audit.rules import CONSEQUENCE, NOTE, SUSPECT, WRONG, Evidence, Sighting, rule, seen_at
from mptutor.audit.rules_order import looks_like_a_scale

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


# -- gradients by layer --------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerFlush:
    """What FP16 does to the gradient at one layer's output; counts of sampled elements.

    `zeros` were 0 with the scale, `flushed_without_scale` would be 0 as well without it, and
    `subnormal` have lost bits even with it.
    """

    name: str
    total: int
    zeros: int
    subnormal: int
    flushed_without_scale: int
    largest: float

    @property
    def subnormal_share(self) -> float:
        """Share of the nonzero elements that are subnormal."""
        return self.subnormal / max(1, self.total - self.zeros)

    @property
    def zero_share(self) -> float:
        """Share of the elements that are 0."""
        return self.zeros / max(1, self.total)

    @property
    def starved(self) -> bool:
        """Whether most gradients are subnormal, and none is so large that these do not matter.

        A long tail below large values is harmless: in a language model's head two thirds of a
        healthy gradient can be subnormal.
        """
        all_small = self.subnormal_share > 0.5 and self.largest < 2.0**-8
        return self.total > self.zeros and (all_small or self.largest < 2.0**-14)


def flushed_by_layer(gradients: list[LayerGradient]) -> list[LayerFlush]:
    """Add up the FP16 gradients of each layer."""
    sums: dict[str, LayerFlush] = {}
    for g in gradients:
        if g.dtype != "float16" or g.total is None or not g.finite:
            continue
        old = sums.get(g.name, LayerFlush(g.name, 0, 0, 0, 0, 0.0))
        sums[g.name] = LayerFlush(
            g.name,
            old.total + g.total,
            old.zeros + g.zeros,
            old.subnormal + g.subnormal,
            old.flushed_without_scale + g.flushed_without_scale,
            max(old.largest, abs(g.lo), abs(g.hi)),
        )
    return list(sums.values())


@rule(
    SUSPECT,
    lesson=5,
    cause="The loss scale is too low: most gradients of some layers are subnormal in FP16.",
    repair="scaler = torch.amp.GradScaler(device)   # let it start at 65536 and find its place",
)
def scale_too_low(evidence: Evidence) -> Sightings:
    """What holds the scale down is a layer whose gradient overflows first, or init_scale."""
    scales = list(evidence.of(Scale))
    layers = flushed_by_layer(list(evidence.of(LayerGradient)))
    starved = [layer for layer in layers if layer.starved]
    if scales and starved:
        worst = max(starved, key=lambda layer: layer.subnormal_share)
        yield seen_at(
            scales[-1],
            f"at a scale of {scales[-1].scale or 0:g}, {worst.subnormal_share:.0%} of the nonzero "
            f"gradients at '{worst.name}' are below 6.1e-5, and so for {len(starved)} of "
            f"{len(layers)} layers; {worst.flushed_without_scale} of {worst.total} would be 0 "
            "without the scale",
        )


@rule(
    SUSPECT,
    lesson=3,
    cause="FP16 training without a loss scale: small gradients become 0.",
    repair="scaler = torch.amp.GradScaler(device)\nscaler.scale(loss).backward()\n"
    "scaler.step(optimizer)\nscaler.update()   # or bfloat16, without any scaler",
)
def fp16_without_scaler(evidence: Evidence) -> Sightings:
    """Nothing is raised and nothing is NaN: the loss only stops falling early."""
    used = _used_without_scaler(evidence)
    ran: set[str] = set()
    for event in evidence.of(Forward, Backward):
        if isinstance(event, Forward):
            ran |= {v.dtype for v in event.outputs if event.learns}
            continue
        dtypes, ran = ran, set()
        scaled = event.scaler or looks_like_a_scale(event.factor)
        if "float16" in dtypes and not scaled and not event.error:
            yield from _without_scaler(evidence, event, id(event) in used)


def _used_without_scaler(evidence: Evidence) -> set[int]:
    """Return the backward passes whose gradients an optimizer used."""
    steps = evidence.about(OptimizerStep)
    return {id(part.backward) for _, gradients in steps for part in gradients.parts}


def _without_scaler(evidence: Evidence, backward: Backward, used: bool) -> Sightings:
    layers = flushed_by_layer(list(evidence.after(backward, LayerGradient, until=Backward)))
    if not layers:
        if used:
            yield seen_at(backward, "no layer's gradient was looked at in this step")
        return
    worst = max(layers, key=lambda layer: (layer.starved, layer.zero_share))
    lost = worst.starved or worst.zero_share > 0.9
    if used or lost:
        yield seen_at(
            backward,
            f"at '{worst.name}' {worst.zero_share:.0%} of the gradients are 0, and of the others "
            f"{worst.subnormal_share:.0%} are below 6.1e-5, where FP16 loses bits",
            level=WRONG if lost else None,
        )


@rule(
    WRONG,
    lesson=4,
    cause="An optimizer step left inf or NaN in the weights.",
    repair="model.float()   # FP32 weights; autocast makes the 16-bit copies it needs",
    order=CONSEQUENCE,
)
def weights_not_finite(evidence: Evidence) -> Sightings:
    """From here on every output is NaN."""
    for step in evidence.of(OptimizerStep):
        if step.weights_finite is not None and not step.weights_finite:
            what = f"{step.algorithm} with {'/'.join(step.dtypes)} parameters"
            yield seen_at(step, f"{what}, lr {step.lr:g}")
            return
