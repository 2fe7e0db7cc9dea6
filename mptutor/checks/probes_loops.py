"""The probe that drives a learner's training loop under the audit.

The loop gets a patient of the clinic and trains it. What the audit saw is boiled down to plain
values that a learner can read: the findings, the dtypes that layers computed in, how many steps
took place and at which scales, the losses, and the weights at the end. Nothing here knows which
of them are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def drive_loop(written: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Let the learner's loop train a patient and tell what happened.

    ``inputs`` are the name of a model of `mptutor.experiments.clinic`, and keyword arguments of its
    `patient`. ``"scales": "16 16x 15"`` reads: a step at a scale of 2^16, one that was skipped, one
    at 2^15; ``"rows"`` is the largest number of rows that a layer got at once.
    """
    told, losses = _watched(written, inputs)
    return {**told, "losses": _in_a_line(losses)}


def drive_average(written: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Do the same with a loop that returns an average of its weights, a tensor for each."""
    told, average = _watched(written, inputs)
    return {**told, "average": _in_one_tensor(average)}


def drive_optimizers(written: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Do the same with a loop that makes optimizers of its own.

    The findings are left out: the patient's optimizer, which nobody steps, has the same weights.
    """
    told = drive_loop(written, inputs)
    del told["findings"]
    return told


def _watched(written: Callable[[Any], Any], inputs: Sequence[Any]) -> tuple[dict[str, Any], Any]:
    """Return what the audit saw of the loop, and what the loop returned."""
    from mptutor import audit
    from mptutor.audit.events import OptimizerStep, ScalerStep, Update
    from mptutor.audit.events_forward import Forward
    from mptutor.audit.tensors import dtype_name
    from mptutor.experiments import clinic

    name, options = inputs
    patient = clinic.patient(getattr(clinic, name), **options)
    looked_at = audit.Audit()
    looked_at.start()  # and not `with`, which would print its report if the loop raises
    try:
        returned = written(patient)
    finally:
        looked_at.stop()
    trace = looked_at.trace
    products = [e for e in trace.of(Forward) if e.product and e.outputs]
    weights = [w.detach().float().reshape(-1) for w in patient.model.parameters()]
    told = {
        "findings": sorted({f.rule for f in looked_at.findings if f.level != "note"}),
        "layers in": sorted({e.outputs[0].dtype for e in products}),
        "rows": max((e.product[0] for e in products), default=0),
        "steps": sum(e.lr > 0 for e in trace.of(OptimizerStep)),
        "scales": _told(list(trace.of(ScalerStep, Update))),
        "weights in": sorted({dtype_name(w.dtype) for w in patient.model.parameters()}),
        "weights": torch.cat(weights),
    }
    return told, returned


def _told(steps_and_updates: list[Any]) -> str:
    """Tell of each step at which scale it was, and whether it was skipped.

    Several optimizers step before one update; a step that no update follows is not told.
    """
    words: list[str] = []
    waiting: dict[str, list[int]] = {}
    for event in steps_and_updates:
        if hasattr(event, "took_place"):
            waiting.setdefault(event.scaler, []).append(len(words))
            words.append("" if event.took_place else "x")
            continue
        power = f"{math.log2(event.before):g}" if event.before else "scale 0"
        for place in waiting.pop(event.scaler, []):
            words[place] = power + words[place]
    return " ".join(word for word in words if word not in ("", "x"))


def _in_a_line(losses: Any) -> str:
    if not isinstance(losses, (list, tuple, torch.Tensor)):
        return f"no list, but a {type(losses).__name__}"
    return " ".join(f"{float(torch.as_tensor(loss).detach()):.3g}" for loss in losses)


def _in_one_tensor(average: Any) -> Any:
    if isinstance(average, dict):
        average = list(average.values())
    if not isinstance(average, (list, tuple)) or not average:
        return f"no list of tensors, but a {type(average).__name__}"
    if not all(isinstance(x, torch.Tensor) for x in average):
        return "a list with other things than tensors in it"
    return torch.cat([x.detach().float().reshape(-1) for x in average])
