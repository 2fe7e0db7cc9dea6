"""The probe for trainings that are broken off and go on from a checkpoint.

Each part of the training starts as a new process would: another patient with other weights, a
fresh optimizer and a fresh scaler. What one part returns travels to the next as a file would carry
it, without references and without code. Like every probe it knows nothing of right and wrong; see
`mptutor.checks.probes`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mptutor.checks.probes_loops import drive_loop


def drive_resume(written: Callable[..., Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Let the learner's code train a patient in parts and tell what happened, as `drive_loop` does.

    ``inputs`` are those of `drive_loop`, and how many steps each part takes. ``written`` is called
    for each with a patient, what it returned for the part before, or None, and the steps.
    """
    from mptutor.experiments import clinic

    name, options, parts = inputs

    def in_parts(last: clinic.Patient) -> list[float]:
        checkpoint = None
        for part, steps in enumerate(parts, 1):
            patient = last
            if part < len(parts):
                patient = clinic.patient(getattr(clinic, name), **options)
            if part > 1:
                _draw_anew(patient.model, seed=part)
            checkpoint = _by_file(written(patient, checkpoint, steps))
        return []

    return drive_loop(in_parts, (name, options))


def _draw_anew(model: nn.Module, seed: int) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1000 + seed)
        for layer in model.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()


def _by_file(checkpoint: Any) -> Any:
    """Write a checkpoint and read it again; only plain values and tensors can be read."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
