"""Time a census of 10^7 values against casting them once for each of 41 scales.

Every contender answers how many values FP16 flushes to zero and how many it makes infinite at the
scales 2^-10 to 2^30; all but the two histograms of exponents answer exactly, and are checked to
agree. Copying the tensor is there as a measure of how fast memory is.

    python benchmarks/census.py [--json FILE]
"""

from __future__ import annotations

import torch
from common import interleave, medians, report

from mptutor import FP16, take_census

VALUES = 10**7
SCALES = [2.0**k for k in range(-10, 31)]
ROUNDS = 5
PIECE = 2**18

Counts = list[tuple[int, int]]


def gradients() -> torch.Tensor:
    """Draw values over some sixty binades, with zeros, ties and infinities among them."""
    torch.manual_seed(0)
    x = torch.randn(VALUES) * torch.exp2(6 * torch.randn(VALUES) - 20)
    x[::97] = 0
    x[1::1009] = 2.0 ** torch.randint(-60, 10, (len(x[1::1009]),)).float()
    x[2::1009] = 65520 * 2.0 ** torch.randint(-32, 12, (len(x[2::1009]),)).float()
    x[3] = torch.inf
    return x


def by_census(x: torch.Tensor) -> Counts:
    census = take_census(x)
    return [(census.flushed(FP16, s), census.overflowed(FP16, s)) for s in SCALES]


def by_casting(x: torch.Tensor) -> Counts:
    zeros, infs = (x == 0).sum(), x.isinf().sum()
    counts = []
    for scale in SCALES:
        x_q = (x * scale).half()
        counts.append(((x_q == 0).sum() - zeros, x_q.isinf().sum() - infs))
    return [(int(flushed), int(overflowed)) for flushed, overflowed in counts]


def by_casting_pieces(x: torch.Tensor) -> Counts:
    """Cast in pieces that fit the cache, which is what a careful programmer would do."""
    by_piece = [by_casting(piece) for piece in x.split(PIECE)]
    return [tuple(map(sum, zip(*counts, strict=True))) for counts in zip(*by_piece, strict=True)]


def by_frexp(x: torch.Tensor) -> torch.Tensor:
    exponents = torch.frexp(x[x != 0])[1]
    return torch.bincount(exponents + 150, minlength=300)


def by_histogram(x: torch.Tensor) -> torch.Tensor:
    return torch.histc(x.abs().log2(), bins=100, min=-60, max=40)


def main() -> None:
    x = gradients()
    copy = torch.empty_like(x)
    if not by_census(x) == by_casting_pieces(x):
        raise AssertionError("the census and the casts disagree")
    seconds = interleave(
        {
            "census, 41 scales": lambda: by_census(x),
            "cast at every scale": lambda: by_casting(x),
            "cast at every scale, in pieces": lambda: by_casting_pieces(x),
            "torch.frexp and bincount (inexact)": lambda: by_frexp(x),
            "histc of log2 (inexact)": lambda: by_histogram(x),
            "copy_": lambda: copy.copy_(x),
        },
        rounds=ROUNDS,
    )
    median = medians(seconds)
    rows = [
        {
            "contender": name,
            "ms": 1000 * taken,
            "to the census": taken / median["census, 41 scales"],
            "to copy_": taken / median["copy_"],
        }
        for name, taken in median.items()
    ]
    report(f"What {len(SCALES)} loss scales do to {VALUES:,} values in FP16", rows)


if __name__ == "__main__":
    main()
