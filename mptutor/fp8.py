"""Scales for 8-bit floats: one for a tensor, for each row, for each block of 32 values.

FP8 has too few exponents for a training step. E4M3 reaches from 2^-9 to 448, and a gradient of 1e-5
is nothing to it. So each tensor is multiplied by a scale of its own before it is rounded, and what
is computed from it is divided by the scale afterwards:

    amax  = largest magnitude in x
    scale = fmt.max / amax                      the largest value lands on the largest number
    x_q   = round(x × scale)                    values of fmt
    x     ≈ x_q / scale

That is *current* scaling. It reads the tensor twice: once for the amax, once to round it. *Delayed*
scaling (`DelayedScale`) takes the amax of earlier steps instead and reads it once; whatever has
grown since is clipped to the largest number. Both are NVIDIA Transformer Engine's, and the formula
above is from its documentation:
https://nvidia.github.io/TransformerEngine/features/low_precision_training/fp8_current_scaling/fp8_current_scaling.html
https://nvidia.github.io/TransformerEngine/features/low_precision_training/fp8_delayed_scaling/fp8_delayed_scaling.html

A scale moves the window, it does not widen it. One value 100,000 times larger than the others takes
the top of the range, and the others fall off its bottom. Scales for parts of a tensor confine that
to the part: a row, or a block of 32 neighbours. The OCP Microscaling Formats (MX) Specification
v1.0, section 6.3, makes the block's scale a power of two, stored in 8 bits without sign or mantissa
(E8M0):

    scale = 2^(emax of fmt - floor(log2(amax)))

The block's largest value then lies in the format's top binade, and where it exceeds ``fmt.max``
there (449 to 511 in E4M3) it is clipped. Other implementations round the exponent the other way, so
that nothing is clipped and up to a bit of range is left unused: ``round_up`` below, as in NVIDIA's
cuDNN (https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/BlockScaling.html).

Here a scale is what values are *multiplied* by, like a loss scale. The MX specification and
`torch._scaled_mm` mean the reciprocal, which they multiply by to get the values back.

Rounding saturates throughout: Transformer Engine clips what exceeds the range, E5M2's too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mptutor.formats import FP32, FloatFormat, get_format
from mptutor.rounding import quantize

#: What shares a scale, from nothing at all to the smallest part.
GRANULARITIES = ("none", "tensor", "row", "block")

#: Values that share a scale in the MX formats (OCP MX Specification v1.0, table 1).
BLOCK_SIZE = 32

#: Exponents that E8M0, a scale's own format in the MX formats, can hold.
_E8M0_LARGEST = 127

#: How `DelayedScale` makes one amax of its history.
ALGORITHMS = ("max", "most_recent")


@dataclass(frozen=True, eq=False)
class ScaledTensor:
    """A tensor in 8 bits or fewer: values of a format, and the scales that brought them there.

    Attributes
    ----------
    values
        FP32, the shape of the tensor; every value is a number of `fmt`.
    scale
        FP32, of a shape that multiplies `values`: ``[]`` for a tensor, ``[..., 1]`` for rows, and
        the shape of `values` for blocks, each scale repeated over its block.
    fmt
        The format.
    """

    values: Tensor
    scale: Tensor
    fmt: FloatFormat

    def dequantize(self) -> Tensor:
        """Return what the values stand for: FP32, divided by their scales."""
        return self.values / self.scale


def amax_of(x: Tensor, granularity: str = "tensor", block_size: int = BLOCK_SIZE) -> Tensor:
    """Return the largest magnitude of each part of ``x`` that gets a scale of its own.

    Parameters
    ----------
    x
        A floating-point tensor, ``[..., n]``; for rows and blocks of at least one dimension.
    granularity
        ``"tensor"``: all of it. ``"row"``: along the last dimension. ``"block"``: of every
        ``block_size`` neighbours along the last dimension, fewer in the last block of a row.
    block_size
        Values a block.

    Returns
    -------
    Tensor
        FP32, of shape ``[]``, ``[..., 1]`` or ``[..., ceil(n / block_size)]``.
    """
    _check(granularity, block_size)
    if granularity == "none":
        raise ValueError("granularity is 'none', which has no scale that an amax could choose")
    magnitude = x.detach().float().abs()
    if granularity == "tensor":
        return magnitude.amax() if magnitude.numel() else magnitude.new_zeros(())
    if granularity == "row":
        return magnitude.amax(-1, keepdim=True)
    length = x.shape[-1]
    padded = F.pad(magnitude, (0, -length % block_size))
    return padded.unflatten(-1, (-1, block_size)).amax(-1)


def amax_scale(amax: Tensor, fmt: FloatFormat | str | torch.dtype, margin: int = 0) -> Tensor:
    """Return the scale that takes ``amax`` to the largest number of ``fmt``.

    ``fmt.max / amax / 2^margin``; 1 where that says nothing, for an amax that is zero, infinite or
    NaN. At most FP32's largest number.
    """
    amax = amax.float()
    scale = get_format(fmt).max / amax * 2.0**-margin
    scale = scale.clamp(max=FP32.max)
    return torch.where((amax > 0) & amax.isfinite(), scale, torch.ones_like(amax))


def power_of_two_scale(
    amax: Tensor, fmt: FloatFormat | str | torch.dtype, round_up: bool = False
) -> Tensor:
    """Return the power of two that takes ``amax`` into the top binade of ``fmt``.

    ``2^(emax - floor(log2(amax)))`` as the OCP MX Specification v1.0, 6.3, has it, within what E8M0
    can hold; 1 for an amax that is zero, infinite or NaN. An amax above ``fmt.max`` after scaling
    will be clipped, unless ``round_up`` rounds the shared exponent up there.
    """
    fmt, amax = get_format(fmt), amax.float()
    significand, exponent = torch.frexp(amax)  # amax = significand × 2^exponent, from 1/2 to 1
    shared = exponent - 1 - fmt.emax
    if round_up:
        shared = shared + (significand * 2.0 ** (fmt.emax + 1) > fmt.max)
    scale = torch.exp2(-shared.clamp(-_E8M0_LARGEST, _E8M0_LARGEST).float())
    return torch.where((amax > 0) & amax.isfinite(), scale, torch.ones_like(amax))


def quantize_scaled(
    x: Tensor,
    fmt: FloatFormat | str | torch.dtype,
    granularity: str = "tensor",
    *,
    scale: Tensor | float | None = None,
    power_of_two: bool | None = None,
    block_size: int = BLOCK_SIZE,
) -> ScaledTensor:
    """Scale a tensor, by its own amax unless told otherwise, and round it to a format.

    Parameters
    ----------
    x
        A floating-point tensor, ``[..., n]``.
    fmt
        The format, `mptutor.FP8_E4M3` or one narrower still.
    granularity
        What shares a scale: ``"none"`` scales nothing, ``"tensor"`` all values alike, ``"row"``
        those along the last dimension, ``"block"`` every ``block_size`` of them.
    scale
        One scale for the whole tensor, instead of the one that its amax would choose.
    power_of_two
        Use the MX rule, which is the default for blocks, or ``fmt.max / amax``, which is the
        default for rows and tensors.
    block_size
        Values a block.

    Raises
    ------
    ValueError
        If the granularity does not exist, ``block_size`` is below 1, or a scale is given for what
        is not ``"tensor"``, or is not one finite number above 0.

    Examples
    --------
    >>> x = torch.tensor([0.0005, 0.0025, 0.0035])
    >>> quantize_scaled(x, "FP8_E4M3", "none").dequantize()
    tensor([0.0000, 0.0020, 0.0039])
    >>> quantize_scaled(x, "FP8_E4M3").dequantize()
    tensor([0.0005, 0.0025, 0.0035])
    """
    _check(granularity, block_size)
    fmt = get_format(fmt)
    if scale is not None and granularity != "tensor":
        raise ValueError(f"scale is given, but granularity is {granularity!r}; allowed is 'tensor'")
    if scale is not None:
        scale = _one_scale(scale, x.device)
    elif granularity == "none":
        scale = torch.ones((), device=x.device)
    else:
        by_power = granularity == "block" if power_of_two is None else power_of_two
        choose = power_of_two_scale if by_power else amax_scale
        scale = choose(amax_of(x, granularity, block_size), fmt)
    if granularity == "block":
        scale = scale.repeat_interleave(block_size, -1)[..., : x.shape[-1]]
    values = quantize(x.detach().float() * scale, fmt, overflow="saturate")
    return ScaledTensor(values, scale, fmt)


def _one_scale(scale: Tensor | float, device: torch.device) -> Tensor:
    given = torch.as_tensor(scale, dtype=torch.float32, device=device)
    if given.numel() != 1 or not 0 < given.item() < torch.inf:
        raise ValueError(f"scale is {scale}; allowed is one number above 0, and finite in FP32")
    return given


def _check(granularity: str, block_size: int) -> None:
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity is {granularity!r}; allowed are {', '.join(GRANULARITIES)}")
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; allowed are 1 and more")


@dataclass(frozen=True)
class DelayedScale:
    """A per-tensor scale that follows the amax of the steps before.

    The order of a step is Transformer Engine's: round the tensor with the scale at hand, note its
    true amax, make the next scale of the history. The scale is 1 at first, and stays as it is
    where the amax that would choose it is zero, infinite or NaN.

    Parameters
    ----------
    fmt
        The format.
    length
        How many steps the history remembers; Transformer Engine's default is 1024.
    algorithm
        ``"max"`` takes the largest amax of the history, ``"most_recent"`` the last.
    margin
        Powers of two left free above the expected amax.
    scale, history
        The state: the scale for the next tensor, and the amaxes remembered, oldest first.

    Raises
    ------
    ValueError
        If the algorithm does not exist or ``length`` is below 1.

    Examples
    --------
    >>> state = DelayedScale(get_format("FP8_E4M3"), length=2)
    >>> for amax in (1.0, 7.0, 1.0, 1.0):
    ...     state = state.after(amax)
    ...     print(amax, state.scale)
    1.0 448.0
    7.0 64.0
    1.0 64.0
    1.0 448.0
    """

    fmt: FloatFormat
    length: int = 1024
    algorithm: str = "max"
    margin: int = 0
    scale: float = 1.0
    history: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"algorithm is {self.algorithm!r}; allowed are {', '.join(ALGORITHMS)}"
            )
        if self.length < 1:
            raise ValueError(f"length is {self.length}; allowed are 1 and more")

    def quantize(self, x: Tensor) -> ScaledTensor:
        """Round a tensor with the scale at hand."""
        return quantize_scaled(x, self.fmt, scale=self.scale)

    def after(self, amax: float) -> DelayedScale:
        """Return the state after a tensor whose largest magnitude was ``amax``."""
        history = (*self.history, amax)[-self.length :]
        considered = history if self.algorithm == "max" else (amax,)
        if not all(map(math.isfinite, considered)) or max(considered) <= 0:
            return replace(self, history=history)
        scale = min(self.fmt.max / max(considered) * 2.0**-self.margin, FP32.max)
        return replace(self, history=history, scale=scale)
