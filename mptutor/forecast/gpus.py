"""The GPUs to forecast for, in the numbers of their makers' data sheets.

A data sheet promises what a chip can do at best: so many floating-point operations a second for
each kind of arithmetic, and so many bytes a second from memory.  The operations are those of
*dense* matrices; NVIDIA prints twice as much "with sparsity", which no ordinary training has.  On
GeForce cards FP16 and BF16 products with FP32 accumulation, the ones that training uses, run at
half the rate that is printed in large type.  How much of all this a training step gets is not in
any data sheet; see `mptutor.forecast.roofline`.
"""

from __future__ import annotations

from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Gpu:
    """A GPU on paper.

    Attributes
    ----------
    name
        As it is called in tables.
    fp32_flops, tf32_flops, fp16_flops, bf16_flops
        Floating-point operations a second, at best: FP32 on the ordinary cores, the others on
        Tensor Cores with FP32 accumulation.  None where the chip has no units for a format.
    bytes_per_s
        From and to its memory, at best.
    memory_bytes
        How much memory it has.
    memory_kind
        ``"HBM"`` or ``"GDDR"``.
    checked
        ``"training"`` and ``"inference"`` where forecasts of that for it have been held against
        published measurements, in tests/published.py.
    source
        Where the numbers are printed.
    """

    name: str
    fp32_flops: float
    tf32_flops: float | None
    fp16_flops: float
    bf16_flops: float | None
    bytes_per_s: float
    memory_bytes: float
    memory_kind: str
    checked: tuple[str, ...]
    source: str


def _gpu(
    name: str,
    source: str,
    *,
    fp32: float,
    tf32: float | None,
    fp16: float,
    bf16: float | None,
    gb_per_s: float,
    gib: float,
    kind: str = "HBM",
    checked: tuple[str, ...] = ("training",),
) -> Gpu:
    """Make a `Gpu` from numbers as data sheets print them: TFLOP/s, GB/s, GB of 2^30 bytes."""
    return Gpu(
        name=name,
        fp32_flops=fp32 * TERA,
        tf32_flops=None if tf32 is None else tf32 * TERA,
        fp16_flops=fp16 * TERA,
        bf16_flops=None if bf16 is None else bf16 * TERA,
        bytes_per_s=gb_per_s * GIGA,
        memory_bytes=gib * 2**30,
        memory_kind=kind,
        checked=checked,
        source=source,
    )


#: By name, the oldest first.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu(
            "V100",
            "NVIDIA V100 data sheet, SXM2 16 GB",
            fp32=15.7, tf32=None, fp16=125, bf16=None, gb_per_s=900, gib=16,
            checked=("training", "inference"),
        ),
        _gpu(
            "T4",
            "NVIDIA T4 data sheet",
            fp32=8.1, tf32=None, fp16=65, bf16=None, gb_per_s=320, gib=16,
            kind="GDDR", checked=("inference",),
        ),
        _gpu(
            "A100",
            "NVIDIA A100 data sheet, SXM 80 GB",
            fp32=19.5, tf32=156, fp16=312, bf16=312, gb_per_s=2039, gib=80,
        ),
        _gpu(
            "RTX 3090",
            "NVIDIA Ampere GA102 GPU architecture white paper",
            fp32=35.6, tf32=35.6, fp16=71, bf16=71, gb_per_s=936, gib=24, kind="GDDR",
        ),
        _gpu(
            "RTX 4090",
            "NVIDIA Ada GPU architecture white paper",
            fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, gb_per_s=1008, gib=24,
            kind="GDDR",
        ),
        _gpu(
            "L4",
            "NVIDIA L4 data sheet, halved where it says with sparsity",
            fp32=30.3, tf32=60, fp16=121, bf16=121, gb_per_s=300, gib=24,
            kind="GDDR", checked=(),
        ),
        _gpu(
            "H100",
            "NVIDIA H100 data sheet, SXM 80 GB, halved where it says with sparsity",
            fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, gb_per_s=3350, gib=80,
        ),
        _gpu(
            "H200",
            "NVIDIA H200 data sheet, SXM, halved where it says with sparsity",
            fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, gb_per_s=4800, gib=141,
            checked=(),
        ),
        _gpu(
            "B200",
            "NVIDIA HGX B200 and DGX B200 data sheets, an eighth of the system's dense rates",
            fp32=75, tf32=1100, fp16=2250, bf16=2250, gb_per_s=8000, gib=180, checked=(),
        ),
    )
}  # fmt: skip


def find_gpu(name: str | Gpu) -> Gpu:
    """Look up a GPU by its name; case, blanks and hyphens do not matter.

    Raises
    ------
    ValueError
        If it is none of `GPUS`.
    """
    if isinstance(name, Gpu):
        return name
    known = {_plain(gpu): value for gpu, value in GPUS.items()}
    if _plain(name) not in known:
        raise ValueError(f"gpu: got {name!r}, allowed are {', '.join(GPUS)}")
    return known[_plain(name)]


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").removeprefix("rtx")
