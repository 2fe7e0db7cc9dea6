"""Rounding tensors to a format.

To round is to choose between two neighbours. Any number *x* in a binade ``[2^e, 2^(e+1))`` lies
between two multiples of the ulp, ``2^(e-m)`` for a format with *m* mantissa bits. So count in steps
of an ulp, and rounding to the format becomes rounding to an integer:

    ulp   = 2^(e-m)              found by clearing the mantissa of x
    steps = x / ulp              exact, since only the exponent changes
    x_q   = round(steps) × ulp

Below the smallest normal number *e* stops at the format's ``emin``. The ulp keeps its size there
and *x* runs out of steps: that is gradual underflow, and it needs no code of its own.

What is left is how to round to an integer, one line a mode, and what to do above the largest
number. Nearest-even is what every GPU and CPU does unless told otherwise. Stochastic rounding goes
up with a probability equal to the fraction of a step, so that it is right on average.

Overflow is a rule and no accident, because libraries differ: cast to FP8 E4M3, torch 2.14 turns
1000 into 448 on a CPU and ml_dtypes turns it into NaN. ``overflow="inf"`` follows IEEE 754, 7.4:
beyond the largest number lies infinity, unless the mode rounds toward zero there. ``"nan"`` puts
NaN in its place, as E4M3 does without saturation. ``"saturate"`` stops at the largest number, for
infinities too, as the conversions of FP8 hardware do in training.

The work goes through the tensor in pieces that fit the cache. A whole tensor of 40 MB would travel
to memory and back at every line, at less than half the speed. FP16, BF16 and E5M2 to nearest even
are torch's own casts, one instruction or a few, which these lines could not outrun.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from mptutor.formats import BF16, FP8_E5M2, FP16, FloatFormat, check_overflow, get_format

ROUNDING_MODES = ("nearest_even", "toward_zero", "up", "down", "stochastic")

#: Elements a piece: 1 MiB of FP32 stays in the cache, and calling torch for it costs next to
#: nothing. Stochastic rounding needs more room beside its piece and a cast less. Even, since one
#: random draw serves two elements.
_PIECE = 2**18
_STOCHASTIC_PIECE = 2**16
_CAST_PIECE = 2**21


class _Layout(NamedTuple):
    """How a dtype that the arithmetic is done in lies in memory."""

    int_dtype: torch.dtype
    exponent_mask: int
    mantissa_bits: int
    bias: int


_LAYOUT = {
    torch.float32: _Layout(torch.int32, 0x7F800000, 23, 127),
    torch.float64: _Layout(torch.int64, 0x7FF0000000000000, 52, 1023),
}


def quantize(
    x: torch.Tensor | float,
    fmt: FloatFormat | str | torch.dtype,
    rounding: str = "nearest_even",
    overflow: str | None = None,
    generator: torch.Generator | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Round every element of ``x`` to a value of ``fmt``.

    Parameters
    ----------
    x : torch.Tensor or float
        A floating-point tensor of any shape, on any device. FP64 is rounded once, straight to
        ``fmt``.
    fmt : FloatFormat, str or torch.dtype
        The format: `mptutor.FP16`, ``"FP16"`` or ``torch.float16``.
    rounding : {"nearest_even", "toward_zero", "up", "down", "stochastic"}
        Which neighbour to take. ``"up"`` is toward +inf, ``"down"`` toward -inf.
    overflow : {"inf", "saturate", "nan"}, optional
        What becomes of numbers beyond ``fmt.max`` and of infinities: ``"inf"`` where the format
        has infinities and ``"saturate"`` elsewhere, unless given.
    generator : torch.Generator, optional
        Source of the random numbers of stochastic rounding.
    out : torch.Tensor, optional
        A contiguous FP32 tensor to write the result into: ``x`` itself, or one that shares no
        memory with it. Reusing one saves more time on large tensors than the rounding takes.

    Returns
    -------
    torch.Tensor
        FP32, the shape and device of ``x``, detached from autograd. The sign of zero is kept, and
        so is NaN, even where ``fmt`` has no code for it.

    Raises
    ------
    TypeError
        If ``x`` is neither a float nor a floating-point tensor, or ``out`` is no tensor.
    ValueError
        If the format, the rounding mode or the overflow rule does not exist, or if the rule or
        ``out`` does not fit.

    Examples
    --------
    >>> quantize(torch.tensor([0.1, 65519.0, 65520.0]), "FP16")
    tensor([9.9976e-02, 6.5504e+04,        inf])
    """
    x = _as_real_tensor(x)
    fmt = get_format(fmt)
    if rounding not in ROUNDING_MODES:
        raise ValueError(f"rounding is {rounding!r}; allowed are {ROUNDING_MODES}")
    overflow = check_overflow(fmt, overflow)

    x_q = _as_result(out, x)
    if _torch_rounds(x, fmt, rounding, overflow):
        for x_piece, out_piece in _pieces(x, x_q, _CAST_PIECE):
            out_piece.copy_(x_piece.to(fmt.torch_dtype))
        return x_q

    size = _STOCHASTIC_PIECE if rounding == "stochastic" else _PIECE
    for x_piece, out_piece in _pieces(x, x_q, size):
        if x.dtype is torch.float32:
            _round_piece(x_piece, fmt, rounding, overflow, generator, out=out_piece)
        else:
            out_piece.copy_(_round_piece(x_piece, fmt, rounding, overflow, generator))
    return x_q


def _pieces(
    x: torch.Tensor, x_q: torch.Tensor, size: int
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Cut both tensors into matching flat pieces; on a GPU, whose cache is no help, into one."""
    size = size if x.device.type == "cpu" else max(x.numel(), 1)
    return zip(x.reshape(-1).split(size), x_q.view(-1).split(size), strict=True)


def _as_real_tensor(x: torch.Tensor | float) -> torch.Tensor:
    """Return ``x`` as a detached tensor of FP32 or FP64, the types the arithmetic is done in."""
    if isinstance(x, float):
        x = torch.tensor(x, dtype=torch.float64)
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        got = f"a tensor of {x.dtype}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(f"x is {got}; allowed are a float and tensors of a floating-point dtype")
    x = x.detach()
    return x if x.dtype in _LAYOUT else x.float()


def _as_result(out: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Return the tensor to write into, a new one unless given."""
    if out is None:
        return torch.empty(x.shape, dtype=torch.float32, device=x.device)
    want = f"a contiguous torch.float32 of shape {tuple(x.shape)} on {x.device}, without grad"
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is a {type(out).__name__}; allowed is {want}")
    fits = out.shape == x.shape and out.device == x.device and out.is_contiguous()
    if out.dtype is not torch.float32 or not fits or out.requires_grad:
        contiguous = "a contiguous" if out.is_contiguous() else "a non-contiguous"
        grad = "with" if out.requires_grad else "without"
        got = f"{contiguous} {out.dtype} of shape {tuple(out.shape)} on {out.device}, {grad} grad"
        raise ValueError(f"out is {got}; allowed is {want}")
    return out


def _torch_rounds(x: torch.Tensor, fmt: FloatFormat, rounding: str, overflow: str) -> bool:
    """Tell whether casting ``x`` to the format's dtype does what is asked.

    From FP64 it would not: torch casts by way of FP32, and rounding twice is not rounding once.
    """
    is_default = rounding == "nearest_even" and overflow == "inf"
    return is_default and fmt in (FP16, BF16, FP8_E5M2) and x.dtype is torch.float32


def _round_piece(
    x: torch.Tensor,
    fmt: FloatFormat,
    rounding: str,
    overflow: str,
    generator: torch.Generator | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Round ``x`` in its own dtype, in place in ``out`` where it is given."""
    if overflow != "saturate" and rounding in ("toward_zero", "up", "down"):
        x = _stop_at_max(x, fmt, rounding)
    # An ulp of BF16 or TF32 may be subnormal in FP32. Dividing by it would be slow on some CPUs,
    # and dividing by zero where denormals are flushed. So these divide by the power of two
    # alone and multiply their mantissa bits in and out.
    ulp_is_normal = fmt.emin - fmt.mantissa_bits >= 1 - _LAYOUT[x.dtype].bias
    bits_apart = 0 if ulp_is_normal else fmt.mantissa_bits
    ulp = _ulp(x, fmt.emin, fmt.mantissa_bits - bits_apart)
    steps = torch.div(x, ulp, out=out)
    if bits_apart:
        steps.mul_(2.0**bits_apart)
    match rounding:
        case "nearest_even":
            steps.round_()
        case "toward_zero":
            steps.div_(1, rounding_mode="trunc")  # torch 2.14's trunc_ takes six times as long
        case "up":
            steps.ceil_()
        case "down":
            steps.floor_()
        case "stochastic":
            above = steps.ceil()  # from above, since -0 - 0 is -0, and -1 + 1 would not be
            one_less = _toss_(torch.sub(above, steps, out=steps), generator)
            steps = torch.sub(above, one_less, out=steps)
    if bits_apart:
        steps.mul_(2.0**-bits_apart)
    x_q = steps.mul_(ulp)
    match overflow:
        case "saturate":
            return x_q.clamp_(-fmt.max, fmt.max)
        case "nan":
            return x_q.masked_fill_(x_q.abs() > fmt.max, torch.nan)
        case "inf":
            # Lift the format's largest binade to the dtype's: what lay above it is infinite now.
            headroom = 2.0 ** (_LAYOUT[x.dtype].bias - fmt.emax)
            return x_q if headroom == 1 else x_q.mul_(headroom).mul_(1 / headroom)


def _toss_(chance: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Replace every probability by the outcome: 1 that often, to within 2^-24, and else 0.

    A uniform 32-bit integer lies below ``(chance - 1/2) × 2^32`` that often. One 64-bit draw makes
    two of them, which is faster than `torch.rand`.
    """
    draws = torch.empty((chance.numel() + 1) // 2, dtype=torch.int64, device=chance.device)
    draws.random_(-(2**63), None, generator=generator)
    uniform = draws.view(torch.int32)[: chance.numel()]
    # A hair more than 2^32, since uniform is rounded to be compared: 0 is never and 1 always.
    scale = 2.0**32 * (1 + 2.0**-23)
    return torch.lt(uniform, chance.sub_(0.5).mul_(scale), out=chance)


def _ulp(x: torch.Tensor, emin: int, mantissa_bits: int) -> torch.Tensor:
    """Return ``2^(e - mantissa_bits)``, where ``2^e <= |x| < 2^(e+1)`` and ``e >= emin``.

    Clearing sign and mantissa of a number leaves the power of two below it.
    """
    layout = _LAYOUT[x.dtype]
    smallest, largest = emin + layout.bias, 2 * layout.bias  # as exponent fields
    bits = x.view(layout.int_dtype) & layout.exponent_mask
    bits.clamp_(smallest << layout.mantissa_bits, largest << layout.mantissa_bits)
    if mantissa_bits:
        bits.sub_(mantissa_bits << layout.mantissa_bits)
    return bits.view(x.dtype)


def _stop_at_max(x: torch.Tensor, fmt: FloatFormat, rounding: str) -> torch.Tensor:
    """Return ``x`` with its finite values limited to ``fmt.max`` where the mode rounds toward zero.

    IEEE 754, 7.4: a directed mode overflows to infinity on one side only. Infinities stay.
    """
    lowest = -torch.inf if rounding == "down" else -fmt.max
    highest = torch.inf if rounding == "up" else fmt.max
    # One or zero, in the dtype of x, since boolean tensors are slow; max / 0 is infinity again.
    is_finite = x.abs().lt_(torch.inf)
    return x.clamp(lowest, highest).div_(is_finite)
