"""Gradients too small for FP16, counted layer by layer, with the loss scale and without it."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mptutor.audit.events import Backward, OptimizerStep, Scale, ScalerStep
from mptutor.audit.events_forward import Forward, LayerGradient
from mptutor.audit.gradients import looks_like_a_scale
from mptutor.audit.rules import SUSPECT, WRONG, Evidence, Sighting, rule, seen_at

Sightings = Iterator[Sighting]


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
    used = _used_by(OptimizerStep, evidence)
    # What a scaler steps on without having scaled it is `loss_not_scaled`.
    with_scaler = _used_by(ScalerStep, evidence)
    ran: set[str] = set()
    for event in evidence.of(Forward, Backward):
        if isinstance(event, Forward):
            ran |= {v.dtype for v in event.outputs if event.learns}
            continue
        dtypes, ran = ran, set()
        scaled = event.scaler or looks_like_a_scale(event.factor) or id(event) in with_scaler
        if "float16" in dtypes and not scaled and not event.error:
            yield from _without_scaler(evidence, event, id(event) in used)


def _used_by(kind: type[OptimizerStep | ScalerStep], evidence: Evidence) -> set[int]:
    """Return the backward passes whose gradients such steps used."""
    steps = evidence.about(kind)
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
