"""The ways to train that lesson 12 compares: a loop, what is asked of it, and what it needs.

A way's `asked` is the course's name for the recipe that its switch stands for. Whether it is what
runs is the question.

Lightning and Accelerate may be missing; `lacks` says so in a sentence with the command that helps.
Their import is timed once, when it first happens in this process and over what is loaded already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

import torch

from mptutor.experiments import framework_loops as framework
from mptutor.experiments import raw_loops as raw
from mptutor.experiments.listings import Loop, edits
from mptutor.requirements import pip_command


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes
    ----------
    name
        What tables call it: framework and switch.
    asked
        The recipe that is asked for, a name of `mptutor.experiments.recipes.RECIPES`.
    listing
        The loop, of `mptutor.experiments.raw_loops` or `framework_loops`.
    options
        Keywords for it.
    package
        What must be installed besides torch.
    is_reference
        Whether others are compared with it bit by bit.
    resizes_storages
        Whether it empties and refills tensors in place, which the memory meter doesn't see on a
        CPU.
    """

    name: str
    asked: str
    listing: Loop
    options: dict[str, object] = field(default_factory=dict)
    package: str | None = None
    is_reference: bool = False
    resizes_storages: bool = False

    @property
    def loop(self) -> Callable[..., list[float]]:
        """The loop with its options."""
        return partial(self.listing, **self.options)

    @property
    def edits(self) -> int:
        """How many lines of the plain loop are to be added, changed or taken out for it."""
        return edits(self.listing)


def _raw(name: str, asked: str, listing: Loop, **options: object) -> Way:
    return Way(name, asked, listing, options, is_reference=True)


def _lightning(name: str, asked: str, listing: Loop, precision: str | None = None) -> Way:
    options = {"precision": precision} if precision else {}
    return Way(name, asked, listing, options, package="lightning")


def _accelerate(precision: str, asked: str) -> Way:
    options = {"precision": precision}
    name = f"Accelerate {precision}"
    return Way(name, asked, framework.accelerate, options, package="accelerate")


_HALF, _BF16 = torch.float16, torch.bfloat16

#: All ways, in the order of tables.
WAYS: tuple[Way, ...] = (
    _raw("plain", "FP32", raw.plain),
    _raw("torch.amp FP16", "AMP FP16", raw.amp_fp16),
    Way("torch.amp FP16 for cuda", "AMP FP16", raw.amp_fp16_for_cuda),
    _raw("torch.amp BF16", "AMP BF16", raw.amp_bf16),
    _raw(".half()", "naive FP16", raw.low_weights, dtype=_HALF),
    _raw(".half(), FP32 loss", "naive FP16", raw.low_weights_fp32_loss, dtype=_HALF),
    _raw(".bfloat16()", "pure BF16", raw.low_weights, dtype=_BF16),
    _raw(".bfloat16(), FP32 loss", "pure BF16", raw.low_weights_fp32_loss, dtype=_BF16),
    _lightning("Fabric 32-true", "FP32", framework.fabric, "32-true"),
    _lightning("Fabric 16-mixed", "AMP FP16", framework.fabric, "16-mixed"),
    _lightning("Fabric 16-mixed by plugin", "AMP FP16", framework.fabric_with_plugin),
    _lightning("Fabric bf16-mixed", "AMP BF16", framework.fabric, "bf16-mixed"),
    _lightning("Fabric 16-true", "naive FP16", framework.fabric, "16-true"),
    _lightning("Fabric bf16-true", "pure BF16", framework.fabric, "bf16-true"),
    _lightning("Trainer 32-true", "FP32", framework.trainer, "32-true"),
    _lightning("Trainer 16-mixed", "AMP FP16", framework.trainer, "16-mixed"),
    _lightning("Trainer 16-mixed by plugin", "AMP FP16", framework.trainer_with_plugin),
    _lightning("Trainer bf16-mixed", "AMP BF16", framework.trainer, "bf16-mixed"),
    _lightning("Trainer 16-true", "naive FP16", framework.trainer, "16-true"),
    _lightning("Trainer bf16-true", "pure BF16", framework.trainer, "bf16-true"),
    _accelerate("no", "FP32"),
    _accelerate("fp16", "AMP FP16"),
    _accelerate("bf16", "AMP BF16"),
    Way("FSDP2 BF16", "AMP BF16", raw.fsdp, resizes_storages=True),
)


def find_way(name: str) -> Way:
    """Return a way by its name.

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    for way in WAYS:
        if way.name == name:
            return way
    raise ValueError(f"name: got {name!r}, allowed are {', '.join(w.name for w in WAYS)}")


_import_seconds: dict[str, float] = {}


def import_seconds(package: str) -> float:
    """Import a package and return how long that took when it first was done here.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    if package not in _import_seconds:
        start = time.perf_counter()
        import_module(package)
        _import_seconds[package] = time.perf_counter() - start
    return _import_seconds[package]


def lacks(way: Way) -> str | None:
    """Say what a way lacks here, with the command that helps; None if it can run."""
    if way.package is None:
        return None
    try:
        import_seconds(way.package)
    except ImportError:
        return f"{way.package} is not installed; {pip_command(way.package)}"
    return None
