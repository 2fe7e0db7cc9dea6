"""What the audit writes down of forward passes, and of the gradients that come back to layers.

These are the records of the two costlier tiers: what came out of each layer, and every torch
function that was called. `Values` describes a tensor; the same object appears in the record of the
operation that made it and in those that use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mptutor.audit.events import Event
from mptutor.audit.site import Site


@dataclass
class Values:
    """The values of one tensor at one moment; `lo` and `hi` are NaN if any value is NaN.

    `made_by` names the torch function or the layer it came out of; None means that it came from
    outside everything watched, as a batch does.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"
    lo: float | None = None
    hi: float | None = None
    made_by: str | None = None

    @property
    def finite(self) -> bool:
        """False if an inf or a NaN was seen; True if not, or if nobody looked."""
        return self.lo is None or (math.isfinite(self.lo) and math.isfinite(self.hi))

    @property
    def largest(self) -> float | None:
        """The largest magnitude, or None where it's unknown or not finite."""
        return max(abs(self.lo), abs(self.hi)) if self.lo is not None and self.finite else None


@dataclass(kw_only=True)
class LayerGradient(Event):
    """The 16-bit gradient at one layer's output; in FP16 with counts over a sample of it.

    `flushed_without_scale` counts those which are nonzero only thanks to the loss scale.
    """

    name: str
    layer: str
    dtype: str
    lo: float | None = None
    hi: float | None = None
    total: int | None = None
    zeros: int | None = None
    subnormal: int | None = None
    flushed_without_scale: int | None = None

    @property
    def finite(self) -> bool:
        """False if an inf or a NaN was seen."""
        return self.lo is None or (math.isfinite(self.lo) and math.isfinite(self.hi))


@dataclass(kw_only=True)
class Forward(Event):
    """A module ran. `root` if no other module called it, `leaf` if it holds no other module.

    `product` is (rows, outputs, inputs) of the matrix product a Linear or convolution comes to;
    `graphs_alive` counts outputs of earlier root modules that something still keeps, graph and all.
    """

    name: str
    layer: str
    root: bool
    leaf: bool
    training: bool
    learns: bool
    device: str
    autocast: str | None
    depth: int
    region: int
    inputs: list[Values]
    outputs: list[Values]
    weight: Values | None = None
    product: tuple[int, ...] | None = None
    graphs_alive: int = 0
    main_in_autocast: bool = False
    error: str | None = None


@dataclass(kw_only=True)
class Call(Event):
    """A torch function was called from Python; `constants` are the floats written into it.

    The rest is set by probes: `asked` and `still` as in OptimizerStep, for an average kept in 16
    bits; `whole` if the values cast to 16 bits are whole numbers as large as `largest_cast`;
    `scaled_grad_site` if it used a gradient that still carries a loss scale, and whence.
    """

    name: str
    inputs: list[Values]
    output: Values | None
    device: str
    autocast: str | None
    depth: int
    region: int
    constants: list[float] = field(default_factory=list)
    fills: bool = False
    learns: bool = False
    module: str | None = None
    in_backward: bool = False
    asked: int | None = None
    still: int | None = None
    whole: bool | None = None
    largest_cast: float | None = None
    scaled_grad_site: Site | None = None
    error: str | None = None


@dataclass(kw_only=True)
class Sync(Event):
    """A value was read back from an accelerator, which made the CPU wait for it."""

    how: str
