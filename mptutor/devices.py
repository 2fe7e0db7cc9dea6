"""Which device the course runs on: the best one that torch can use here."""

from __future__ import annotations

import torch

DEVICE_TYPES = ("cuda", "mps", "cpu")


def pick_device(prefer: str | None = None) -> torch.device:
    """Return the device to run on: CUDA if there is one, else Apple's MPS, else the CPU.

    Parameters
    ----------
    prefer
        ``"cuda"``, ``"mps"`` or ``"cpu"`` to insist on one.

    Raises
    ------
    ValueError
        If `prefer` is not one of the three.
    RuntimeError
        If the one insisted on is not available here.
    """
    if prefer is None:
        return torch.device(next(kind for kind in DEVICE_TYPES if _is_available(kind)))
    if prefer not in DEVICE_TYPES:
        raise ValueError(f"prefer: got {prefer!r}, allowed are {DEVICE_TYPES} and None")
    if not _is_available(prefer):
        raise RuntimeError(f"prefer: got {prefer!r}, but torch {torch.__version__} finds none here")
    return torch.device(prefer)


def synchronize(device: torch.device) -> None:
    """Wait until everything queued on the device is done; a CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _is_available(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    if kind == "mps":
        return torch.backends.mps.is_available()
    return True
