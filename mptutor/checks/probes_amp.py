"""Probes for loops that log more than losses, or are told which precision to train in.

Like every probe these know nothing of right and wrong; see `mptutor.checks.probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mptutor.checks.probes_loops import drive_loop

#: What is told of a loop here; not the audit's findings, for nobody asked to be audited.
_TOLD = ("layers in", "steps", "scales", "weights", "weights in")


def drive_logged_loop(written: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Let a loop train a patient; it returns the norm of its gradients for every step.

    ``inputs`` are as for `mptutor.checks.probes_loops.drive_loop`, and so is what is told, with the
    dtype that the weights end in.
    """
    told, norms = _drive(written, inputs)
    return {**told, "norms": norms}


def drive_in_precision(
    written: Callable[[Any, torch.dtype], Any], inputs: Sequence[Any]
) -> dict[str, Any]:
    """Let a loop train a patient in the precision that the last of the ``inputs`` names."""
    *patient, dtype = inputs
    told, losses = _drive(lambda p: written(p, dtype), patient)
    return {**told, "losses": losses}


def _drive(loop: Callable[[Any], Any], inputs: Sequence[Any]) -> tuple[dict[str, Any], str]:
    """Return what was seen of the loop, and the numbers that it returned, in a line."""
    told = drive_loop(loop, inputs)
    return {key: told[key] for key in _TOLD}, told["losses"]
