"""Filing numbers so finely that every threshold of every format falls between two cells.

Rounding to nearest, ties to even, has three thresholds in a format with m mantissa bits:

    becomes zero           |x| <= 2^(emin-m-1)                       FP16: 2^-25, a tie
    becomes normal         |x| >= 2^emin - 2^(emin-m-1)              FP16: 2^-14 - 2^-25, a tie
    overflows              |x| >= 2^(emax+1) - 2^(emax-m-1)          FP16: 65520, a tie
      if max's code is even  |x| > 2^(emax+1) - 3 × 2^(emax-m-1)     E4M3: 464, a tie

Take a number in the binade ``[2^e, 2^(e+1))`` and its *gap*, what is left to the next power of two:
1 to 2^23 units in the last place of FP32. Then, whatever the format, only three questions matter:

    Is the number the power of two itself?    Is its gap <= 2^i?    Is its gap < 1.5 × 2^i?

The answers cut a binade into 48 cells. Cell 0 is the power of two; in cell 47 is the number whose
gap is 1. Cell c of exponent e has the number 48 e + c, so cells are numbered by magnitude, and
multiplying by 2^k adds 48 k.

How is a gap looked up? An FP32 number's exponent is its logarithm rounded down, and the mantissa's
first bit halves the octave. So the gap is made an FP32 number of its own, whose first bits say in
which half octave it lies: that settles "< 1.5 × 2^i", but also "< 2^i", where "<=" is wanted. Hence
the gap is then reduced by 0.6 × 2^-24 of itself. FP32 numbers just below 2^i are 2^-24 × 2^i apart;
the reduction is more than half of that, and 2^i is rounded down. Around 1.5 × 2^i they are twice as
far apart, the reduction is less than half of that, and 1.5 × 2^i is rounded back. Any other gap is
a whole unit away from both and passes neither.

So seven passes make a value its place in a table of counts, over a piece of the tensor that stays
in the cache, and `torch.bincount` does the counting, which takes as long again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from mptutor.formats import FP32

_MANTISSA = FP32.mantissa_bits

#: The power of two, two cells an octave for the gaps from 2 to 2^23, and the gap of 1.
CELLS_PER_BINADE = 1 + 2 * _MANTISSA + 1

#: Values filed and counted at a time: 1 MiB of FP32, which the caches of a CPU hold while torch's
#: calls cost next to nothing. Other devices want long vectors, within reason.
_PIECE = 2**18
_PIECE_ELSEWHERE = 2**24

# The constants of the passes. As tensors they cost less than Python's numbers, which torch would
# make tensors of at every call.
_MAGNITUDE = torch.tensor(0x7FFFFFFF, dtype=torch.int32)
_MINUS_512 = torch.tensor(-512, dtype=torch.int32)
_REDUCTION = 0.6 * 2.0**-24
_TO_EXPONENT = torch.tensor(_MANTISSA, dtype=torch.int32)
_TO_HALF_OCTAVE = torch.tensor(_MANTISSA - 1, dtype=torch.int32)

#: From one exponent to the next in the table of counts. The first bits of a gap times 512 make a
#: number from 271 to 317: five rows further on, columns 1 to 47. Column 0 is left to the powers of
#: two, whose gap becomes 0.
_ROW = 54
_ROWS_ON = 5


def cell_of(value: float) -> int:
    """Return the number of the cell of ``value`` > 0, rounded up to 24 significant bits."""
    significand, exponent = math.frexp(value)  # value = significand × 2^exponent, from 1/2 to 1
    binade = CELLS_PER_BINADE * (exponent - 1)
    gap = 2 ** (_MANTISSA + 1) - math.ceil(significand * 2 ** (_MANTISSA + 1))
    if gap == 0:
        return binade + CELLS_PER_BINADE
    if gap == 2**_MANTISSA:
        return binade
    octave = (gap - 1).bit_length() - 1  # 2^octave < gap <= 2^(octave + 1)
    return binade + CELLS_PER_BINADE - 2 - 2 * octave - (gap >= 1.5 * 2**octave)


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
        int64, ``[256, 48]``. Row 0 holds the zeros in its first cell and the subnormals, which
        have no cells of their own, in the others; row 255 the infinities and then the NaNs.
    """
    size = (256 + _ROWS_ON) * _ROW
    counts, scratch = 0, torch.empty(2, 0, dtype=torch.int32)
    for x in _pieces(tensors):
        # Memory is kept from piece to piece: fetching it anew can cost as much as all passes.
        if scratch.shape[1] < len(x) or scratch.device != x.device:
            scratch = torch.empty(2, len(x), dtype=torch.int32, device=x.device)
        counts = counts + torch.bincount(_places(x, *scratch[:, : len(x)]), minlength=size)
    rows = counts.cpu().view(-1, _ROW)
    powers_of_two, others = rows[:256, :1], rows[_ROWS_ON:, 1:CELLS_PER_BINADE]
    return torch.cat([powers_of_two, others.flip(1)], dim=1)


def subnormal_mantissas(tensor: torch.Tensor) -> torch.Tensor:
    """Return the FP32 subnormals of a tensor, without sign and in units of 2^-149, as FP32."""
    magnitude = tensor.detach().float().view(torch.int32) & _MAGNITUDE
    return magnitude[(magnitude > 0) & (magnitude < 2**_MANTISSA)].float()


def _pieces(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Split large tensors and join small ones; yield one-dimensional FP32 tensors, at least one."""
    device = tensors[0].device.type
    if device not in ("cpu", "cuda"):
        tensors = [tensor.cpu() for tensor in tensors]  # elsewhere uint32 may be missing
    size = _PIECE_ELSEWHERE if device == "cuda" else _PIECE
    parts: list[torch.Tensor] = []
    used = 0
    for tensor in tensors:
        for part in tensor.detach().reshape(-1).split(size):
            if used + len(part) > size:
                yield _joined(parts)
                parts, used = [], 0
            parts.append(part.float())
            used += len(part)
    yield _joined(parts)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _places(x: torch.Tensor, magnitude: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Return where in the table of counts every value of an FP32 tensor belongs.

    ``magnitude`` and ``bits`` are int32 memory of the shape of ``x``, and will be overwritten.
    """
    torch.bitwise_and(x.view(torch.int32), _MAGNITUDE, out=magnitude)
    # Of an int32 times 512 the 23 lowest bits are left: modulo 2^32, -512 × mantissa is 512 × gap.
    torch.mul(magnitude, _MINUS_512, out=bits)
    # Turned into FP32 numbers where it lies: the fewer bytes the passes touch, the faster.
    gap = bits.view(torch.float32)
    gap.copy_(bits.view(torch.uint32))
    gap.sub_(gap, alpha=_REDUCTION)
    half_octave = bits.bitwise_right_shift_(_TO_HALF_OCTAVE)
    exponent = magnitude.bitwise_right_shift_(_TO_EXPONENT)
    return half_octave.add_(exponent, alpha=_ROW)
