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
    at 2^15.
    """
    from mptutor import audit
    from mptutor.audit.events import OptimizerStep, ScalerStep, Update
    from mptutor.audit.events_forward import Forward
    from mptutor.experiments import clinic

    name, options = inputs
    patient = clinic.patient(getattr(clinic, name), **options)
    looked_at = audit.Audit()
    looked_at.start()  # and not `with`, which would print its report if the loop raises
    try:
        losses = written(patient)
    finally:
        looked_at.stop()
    trace = looked_at.trace
    products = [e for e in trace.of(Forward) if e.product and e.outputs]
    weights = [w.detach().float().reshape(-1) for w in patient.model.parameters()]
    return {
        "findings": sorted({f.rule for f in looked_at.findings if f.level != "note"}),
        "layers in": sorted({e.outputs[0].dtype for e in products}),
        "steps": sum(e.lr > 0 for e in trace.of(OptimizerStep)),
        "scales": _told(list(trace.of(ScalerStep)), list(trace.of(Update))),
        "losses": _in_a_line(losses),
        "weights": torch.cat(weights),
    }


def _told(steps: list[Any], updates: list[Any]) -> str:
    words = []
    for step, update in zip(steps, updates, strict=False):
        power = f"{math.log2(update.before):g}" if update.before else "scale 0"
        words.append(power + ("" if step.took_place else "x"))
    return " ".join(words)


def _in_a_line(losses: Any) -> str:
    if not isinstance(losses, (list, tuple, torch.Tensor)):
        return f"no list, but a {type(losses).__name__}"
    return " ".join(f"{float(torch.as_tensor(loss).detach()):.3g}" for loss in losses)
