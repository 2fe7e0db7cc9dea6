"""Filing numbers so finely that every threshold of every format falls between two cells.

Rounding to nearest, ties to even, has three thresholds in a format with m mantissa bits:

    becomes zero           |x| <= 2^(emin-m-1)                       FP16: 2^-25, a tie
    becomes normal         |x| >= 2^emin - 2^(emin-m-1)              FP16: 2^-14 - 2^-25, a tie
    overflows              |x| >= 2^(emax+1) - 2^(emax-m-1)          FP16: 65520, a tie
      if max's code is even  |x| > 2^(emax+1) - 3 × 2^(emax-m-1)     E4M3: 464, a tie

Each is a power of two, or lies below one by 2^i or by 1.5 × 2^i. So take a number in the binade
``[2^e, 2^(e+1))`` and its *gap*, what is left to the next power of two. File it under e, and by its
gap: is that exactly 2^i, exactly 1.5 × 2^i, or between two of these steps? Then every threshold,
ties included, is a border between cells. In FP32 a gap is 1 to 2^23 units in the last place, which
makes 93 cells a binade: 47 steps and 46 spaces between.

Cells are numbered by magnitude. Cell 0 of a binade is the power of two itself, whose gap is the
whole binade; cell 92 is the last number before the next. Cell c of exponent e has the number
93 e + c, so multiplying by 2^k adds 93 k to it.

The cell comes from a number's bits by eight passes over a piece of the tensor that stays in the
cache, all integer but one; then `torch.bincount` counts. The exponent of an FP32 number is the
logarithm of the number rounded down, and the gap's logarithm is what is wanted. So the passes make
the gap an FP32 number of its own and look at that number's exponent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from mptutor.formats import FP32

#: From a gap of 2^23 to a gap of 1, both included, there are two steps and two spaces an octave.
CELLS_PER_BINADE = 4 * FP32.mantissa_bits + 1

#: Values filed at a time: 1 MiB of FP32, which the caches of a CPU hold while torch's calls cost
#: next to nothing. And filed values counted at a time, since counting clears and reads a table of
#: 400 KB. Other devices want long vectors, within reason.
_PIECE, _BATCH = 2**18, 2**20
_PIECE_ELSEWHERE = 2**24

_MANTISSA = FP32.mantissa_bits
_SIGN_AND_EXPONENT = -(2**_MANTISSA)  # as bits of an int32: nine ones, then zeros

# Of -gap as an FP32 number, its sign, exponent and first mantissa bit count the steps.
_BELOW_STEP = _MANTISSA - 1
_STEPS_AT_FULL_GAP = -512 + 2 * (FP32.bias + _MANTISSA)

#: From one cell to the next in the table of counts: room for the 512 sign and exponent fields. A
#: power of two would put all cells of an exponent into the same few lines of the cache.
_ROW = 512 + 16


def cell_of(value: float) -> int:
    """Return the number of the cell of ``value`` > 0, rounded up to 24 significant bits."""
    significand, exponent = math.frexp(value)  # value = significand × 2^exponent, from 1/2 to 1
    binade = CELLS_PER_BINADE * (exponent - 1)
    gap = 2 ** (_MANTISSA + 1) - math.ceil(significand * 2 ** (_MANTISSA + 1))
    if gap == 0:
        return binade + CELLS_PER_BINADE
    octave = gap.bit_length() - 1
    rest = gap / 2**octave
    return binade + CELLS_PER_BINADE - 1 - (4 * octave + (rest > 1) + (rest >= 1.5) + (rest > 1.5))


def exponent_of(cell: int) -> int:
    """Return the exponent *e* of the binade ``[2^e, 2^(e+1))`` that a cell lies in."""
    return cell // CELLS_PER_BINADE


def count_cells(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Count values by FP32 exponent field and cell.

    Parameters
    ----------
    tensors : list of torch.Tensor
        Floating-point tensors of up to 32 bits, at least one, all on one device.

    Returns
    -------
    torch.Tensor
        int64, ``[256, 93]``. Row 0 holds the zeros in its first cell and the subnormals, which
        have no cells of their own, in the others; row 255 the infinities and then the NaNs.
    """
    return sum(_count(filed) for filed in _filed_batches(tensors)).cpu()


def subnormal_mantissas(tensor: torch.Tensor) -> torch.Tensor:
    """Return the FP32 subnormals of a tensor, without sign and in units of 2^-149, as FP32."""
    magnitude = tensor.detach().float().view(torch.int32) & 0x7FFFFFFF
    return magnitude[(magnitude > 0) & (magnitude < 2**_MANTISSA)].float()


def _filed_batches(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """File the values of all tensors; yield their places in the table, ``_BATCH`` at a time."""
    size = sum(tensor.numel() for tensor in tensors)
    device = tensors[0].device
    on_cpu = device.type == "cpu"
    piece = min(size, _PIECE if on_cpu else _PIECE_ELSEWHERE)
    filed = torch.empty(min(size, max(piece, _BATCH)), dtype=torch.int32, device=device)
    scratch = torch.empty(2, piece, dtype=torch.int32, device=device)
    used = 0
    for tensor in tensors:
        for x in tensor.detach().reshape(-1).split(max(piece, 1)):
            if used + len(x) > len(filed):
                yield filed[:used]
                used = 0
            _file(x.float(), scratch[:, : len(x)], out=filed[used : used + len(x)])
            used += len(x)
    yield filed[:used]


def _file(x: torch.Tensor, scratch: torch.Tensor, out: torch.Tensor) -> None:
    """Write where in the table of counts every value of ``x`` belongs.

    ``x`` is FP32 of shape [n], ``scratch`` int32 of shape [2, n], ``out`` int32 of shape [n].
    """
    bits = x.view(torch.int32)
    up, down = scratch
    # With sign and exponent bits all ones, what is left is the integer mantissa - 2^23 = -gap.
    torch.bitwise_or(bits, _SIGN_AND_EXPONENT, out=up)
    # As an FP32 number it is exact, and its exponent is the logarithm that is wanted.
    down.view(torch.float32).copy_(up)
    # Steps, rounded up and rounded down: equal on a step, and one apart in the space between two.
    # Their sum counts cells, and is -1 here for a full gap and -93 for the smallest.
    torch.add(down, 2**_BELOW_STEP - 1 - (2 * _STEPS_AT_FULL_GAP + 1) * 2**_BELOW_STEP, out=up)
    scratch.bitwise_right_shift_(_BELOW_STEP)
    up.add_(down)
    # Sign and exponent field, from -256 to 255, say where in the row.
    torch.bitwise_right_shift(bits, _MANTISSA, out=out)
    out.sub_(up, alpha=_ROW)


def _count(filed: torch.Tensor) -> torch.Tensor:
    """Count what `_file` wrote, and add up the two signs: int64, [256, 93]."""
    start = _ROW - 256
    counts = torch.bincount(filed, minlength=start + CELLS_PER_BINADE * _ROW)
    rows = counts[start:].view(CELLS_PER_BINADE, _ROW)
    return (rows[:, :256] + rows[:, 256:512]).T
