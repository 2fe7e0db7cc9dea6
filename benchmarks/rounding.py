"""How fast quantize rounds FP32 tensors, beside torch, ml_dtypes, gfloat, pychop and a plain copy.

    python benchmarks/rounding.py [--json FILE]

One thread, 1e7 values over twenty binades, every contender once a round, medians of the process's
CPU time. ``out`` columns reuse the result's memory, as a training loop would; the others make a
new tensor, and the kernel then spends more time on handing out its pages than anybody on rounding.
The slow contenders get fewer values. Millions of values a second; larger is better.

The targets are 700 (nearest even) and 200 (stochastic) where ``copy_`` does 2500, which is what
memory allows. A machine whose memory is slower, or busy, is held to the same share of its copy.
"""

import sys

from common import interleave, medians, report  # sets OMP_NUM_THREADS before torch is imported

# isort: split
import gfloat
import ml_dtypes
import numpy as np
import pychop
import torch

import mptutor as mpt

VALUES = 10_000_000
VALUES_ML_DTYPES = 2_000_000
VALUES_PYCHOP = 200_000
VALUES_GFLOAT = 100_000
ROUNDS = 11

#: Two runs of the very same cast differ by this much on a busy machine.
NOISE = 0.05

#: What a case without torch's cast to beat is held to, as shares of the speed of ``copy_``.
NEAREST_SHARE = 700 / 2500
STOCHASTIC_SHARE = 200 / 2500
PEERS_RATIO = 10

E5M7 = mpt.FloatFormat("E5M7", 5, 7)
ML_DTYPES = {
    mpt.BF16: ml_dtypes.bfloat16,
    mpt.FP16: np.float16,
    mpt.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    mpt.FP8_E5M2: ml_dtypes.float8_e5m2,
    mpt.FP6_E2M3: ml_dtypes.float6_e2m3fn,
    mpt.FP4_E2M1: ml_dtypes.float4_e2m1fn,
}
NEAREST, STOCHASTIC = "nearest_even", "stochastic"
CASES = [
    (mpt.FP16, NEAREST),
    (mpt.BF16, NEAREST),
    (mpt.FP8_E5M2, NEAREST),
    (mpt.FP8_E4M3, NEAREST),
    (mpt.TF32, NEAREST),
    (E5M7, NEAREST),
    (mpt.FP6_E2M3, NEAREST),
    (mpt.FP4_E2M1, NEAREST),
    (mpt.BF16, STOCHASTIC),
    (mpt.FP8_E4M3, STOCHASTIC),
    (E5M7, STOCHASTIC),
]


def ours(fmt, rounding, x, out):
    return {
        "ours, out": lambda: mpt.quantize(x, fmt, rounding, out=out),
        "ours": lambda: mpt.quantize(x, fmt, rounding),
    }


def torchs(fmt, rounding, x, out):
    dtype = fmt.torch_dtype
    if dtype is None or rounding == STOCHASTIC:
        return {}
    return {"torch, out": lambda: out.copy_(x.to(dtype)), "torch": lambda: x.to(dtype).float()}


def ml_dtypess(fmt, rounding, x):
    if fmt not in ML_DTYPES or rounding == STOCHASTIC:
        return {}
    x, dtype = x[:VALUES_ML_DTYPES].numpy(), ML_DTYPES[fmt]
    return {"ml_dtypes": lambda: x.astype(dtype).astype(np.float32)}


def gfloats(fmt, rounding, x):
    x = x[:VALUES_GFLOAT].double().numpy()
    info = gfloat.FormatInfo(
        name=fmt.name,
        k=fmt.bits,
        precision=fmt.mantissa_bits + 1,
        bias=fmt.bias,
        is_signed=True,
        domain=gfloat.Domain.Extended if fmt.special == "ieee" else gfloat.Domain.Finite,
        has_nz=True,
        num_high_nans={"ieee": 2**fmt.mantissa_bits - 1, "nan": 1, "none": 0}[fmt.special],
        has_subnormals=True,
        is_twos_complement=False,
    )
    saturates = fmt.overflow == "saturate"
    if rounding == NEAREST:
        return {"gfloat": lambda: gfloat.round_ndarray(info, x, sat=saturates)}
    draws = np.random.default_rng(0).integers(0, 2**16, x.shape)
    mode = gfloat.RoundMode.StochasticFast
    return {"gfloat": lambda: gfloat.round_ndarray(info, x, mode, saturates, draws, 16)}


def pychops(fmt, rounding, x):
    x = x[:VALUES_PYCHOP]
    chop = pychop.Chop(fmt.exponent_bits, fmt.mantissa_bits, rmode=1 if rounding == NEAREST else 5)
    return {"pychop": lambda: chop(x)}


VALUES_OF = {"ml_dtypes": VALUES_ML_DTYPES, "gfloat": VALUES_GFLOAT, "pychop": VALUES_PYCHOP}


def measure():
    """Return millions of values a second by case and contender, all from one interleaved run."""
    torch.manual_seed(0)
    x = torch.randn(VALUES) * torch.exp2(torch.randint(-12, 8, (VALUES,)).float())
    out = torch.empty_like(x)
    contenders = {("copy_", None, "copy_"): lambda: out.copy_(x)}
    for fmt, rounding in CASES:
        runs = ours(fmt, rounding, x, out) | torchs(fmt, rounding, x, out)
        runs |= ml_dtypess(fmt, rounding, x) | gfloats(fmt, rounding, x) | pychops(fmt, rounding, x)
        contenders |= {(fmt, rounding, name): run for name, run in runs.items()}
    seconds = medians(interleave(contenders, ROUNDS))
    return {key: VALUES_OF.get(key[2], VALUES) / s / 1e6 for key, s in seconds.items()}


def verdict(fmt, rounding, speed, copy):
    """Hold a case's speeds against its target: the comparison in words, and whether it is met."""
    share = speed["ours, out"] / copy
    if rounding == STOCHASTIC:
        return f"{share:.3f} of {STOCHASTIC_SHARE:.3f} of copy_", share >= STOCHASTIC_SHARE
    if fmt.torch_dtype is not None:
        least = min(speed["ours, out"] / speed["torch, out"], speed["ours"] / speed["torch"])
        return f"{least:.2f} x torch's cast", least >= 1 - NOISE
    least = min(speed["ours, out"] / speed[peer] for peer in ("gfloat", "pychop"))
    words = f"{share:.2f} of {NEAREST_SHARE:.2f} of copy_, {least:.0f} of {PEERS_RATIO} x peers"
    return words, share >= NEAREST_SHARE and least >= PEERS_RATIO


def main():
    torch.set_num_threads(1)
    pychop.backend("torch")
    speeds = measure()
    copy = speeds["copy_", None, "copy_"]
    columns = ["ours, out", "torch, out", "ours", "torch", "ml_dtypes", "gfloat", "pychop"]
    rows = []
    for fmt, rounding in CASES:
        speed = {name: s for (f, r, name), s in speeds.items() if (f, r) == (fmt, rounding)}
        target, is_met = verdict(fmt, rounding, speed, copy)
        row = {"format": fmt.name, "rounding": rounding}
        row |= {name: round(speed[name]) if name in speed else "" for name in columns}
        rows.append(row | {"target": target, "met": "yes" if is_met else "NO"})
    report(f"Rounding FP32 values, millions a second (copy_: {copy:.0f})", rows, sys.argv[1:])


if __name__ == "__main__":
    main()
