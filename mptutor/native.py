"""Which formats a device computes in by itself, and which it only imitates.

That torch accepts a dtype says nothing: a T4 runs BF16 and an old laptop runs FP16, by converting
each value to FP32, computing, and rounding back.  The results are right and the speed is gone,
sometimes by two orders of magnitude.  So for every format there are two questions: does torch run
it here, and does the hardware?

* On CUDA, `torch.cuda.is_bf16_supported(including_emulation=False)` answers both for BF16.  For the
  rest the compute capability tells the generation of Tensor Cores, and that tells the formats
  (NVIDIA, *CUDA Programming Guide*, appendix "Compute Capabilities").
* On a CPU, oneDNN, torch's library for matrix products and convolutions there, says whether it has
  16-bit kernels; but it says yes for BF16 on any AVX-512 machine, where it widens to FP32.  Only
  together with the CPU's own list of instructions is the answer "native".
* On Apple's MPS torch runs what it runs and does not tell more.  That is reported as "unknown".

The rules are pure functions of what was found out, so that every kind of machine can be tested on
any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

#: native: by the hardware; emulated: by converting to FP32 and back; absent: not at all;
#: unknown: it runs, and torch doesn't say how.
STATUSES = ("native", "emulated", "absent", "unknown")

#: Lowest compute capability of each generation of Tensor Cores.
_TENSOR_CORES = (
    ((10, 0), "5th-generation Tensor Cores (Blackwell)"),
    ((9, 0), "4th-generation Tensor Cores (Hopper)"),
    ((8, 9), "4th-generation Tensor Cores (Ada)"),
    ((8, 0), "3rd-generation Tensor Cores (Ampere)"),
    ((7, 5), "2nd-generation Tensor Cores (Turing)"),
    ((7, 0), "1st-generation Tensor Cores (Volta)"),
)
#: Cards with Turing's small chips, TU116 and TU117, which have the capability 7.5 and no Tensor
#: Cores.
_TURING_WITHOUT = re.compile(r"GTX 16|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b")

_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # x86 twice, ARM twice
_FP16_INSTRUCTIONS = ("avx512_fp16", "amx_fp16", "fp16_arith")  # x86 twice, ARM
_TF32_ELSEWHERE = (
    "TF32 exists only inside NVIDIA's Tensor Cores from Ampere on; "
    "mpt.quantize(x, mpt.TF32) rounds as they do."
)
_FP8_BY_CONVERSION = "torch stores and converts FP8 here, and computes in a wider format."


@dataclass(frozen=True)
class FormatSupport:
    """Whether a device computes in a format: one of `STATUSES`, and a sentence for the reader."""

    name: str
    status: str
    sentence: str


@dataclass(frozen=True)
class CudaChip:
    """What torch says about a CUDA (or ROCm) device."""

    name: str
    capability: tuple[int, int]
    bf16_native: bool
    bf16_runs: bool
    matmul_uses_tf32: bool = False
    is_rocm: bool = False

    @property
    def tensor_cores(self) -> str | None:
        """The generation of its Tensor Cores, None without any."""
        if self.is_rocm or (self.capability == (7, 5) and _TURING_WITHOUT.search(self.name)):
            return None
        return next((name for lowest, name in _TENSOR_CORES if self.capability >= lowest), None)


@dataclass(frozen=True)
class CpuChip:
    """What torch says about the CPU: its instructions, and the 16-bit kernels oneDNN has for it."""

    instructions: frozenset[str]
    onednn_bf16: bool
    onednn_fp16: bool


def look_at_cuda(device: torch.device) -> CudaChip:
    """Ask torch about a CUDA device."""
    with torch.cuda.device(device):
        return CudaChip(
            name=torch.cuda.get_device_name(),
            capability=torch.cuda.get_device_capability(),
            bf16_native=torch.cuda.is_bf16_supported(including_emulation=False),
            bf16_runs=torch.cuda.is_bf16_supported(),
            matmul_uses_tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
            is_rocm=torch.version.hip is not None,
        )


def look_at_cpu() -> CpuChip:
    """Ask torch about this computer's CPU."""
    if hasattr(torch.cpu, "get_capabilities"):
        found = {name for name, value in torch.cpu.get_capabilities().items() if value is True}
    else:  # older torch answers only these questions
        found = {"avx512_bf16"} if torch.cpu._is_avx512_bf16_supported() else set()
    has_onednn = torch.backends.mkldnn.is_available()
    return CpuChip(
        instructions=frozenset(found),
        onednn_bf16=has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        onednn_fp16=has_onednn and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    )


def cuda_formats(chip: CudaChip) -> tuple[FormatSupport, ...]:
    """Judge FP16, BF16, TF32 and FP8 on a CUDA device."""
    cores = chip.tensor_cores
    if chip.is_rocm:
        fp16 = FormatSupport("FP16", "native", "AMD's GPUs compute in FP16.")
        tf32 = FormatSupport("TF32", "absent", _TF32_ELSEWHERE)
        fp8 = FormatSupport(
            "FP8", "unknown", "It depends on the GPU's generation, which torch doesn't tell."
        )
    else:
        fp16 = _cuda_fp16(cores, chip.capability)
        tf32 = _cuda_tf32(cores, chip)
        fp8 = (
            FormatSupport(
                "FP8", "native", "The Tensor Cores multiply FP8; each tensor needs a scale."
            )
            if cores and chip.capability >= (8, 9)
            else FormatSupport("FP8", "emulated", _FP8_BY_CONVERSION)
        )
    return fp16, _cuda_bf16(chip), tf32, fp8


def _cuda_fp16(cores: str | None, capability: tuple[int, int]) -> FormatSupport:
    if cores:
        return FormatSupport(
            "FP16", "native", f"{cores} multiply it and add up in FP32: use loss scaling."
        )
    if capability < (5, 3):
        return FormatSupport("FP16", "emulated", "This GPU only stores FP16: it saves memory.")
    return FormatSupport(
        "FP16", "native", "No Tensor Cores here: FP16 saves memory, but hardly any time."
    )


def _cuda_bf16(chip: CudaChip) -> FormatSupport:
    if chip.bf16_native:
        return FormatSupport(
            "BF16", "native", "As fast as FP16 here, with FP32's range: needs no loss scaling."
        )
    if chip.bf16_runs:
        return FormatSupport(
            "BF16", "emulated", "It runs by conversion and is slow: use FP16 with loss scaling."
        )
    return FormatSupport("BF16", "absent", "torch can't run it here: use FP16 with loss scaling.")


def _cuda_tf32(cores: str | None, chip: CudaChip) -> FormatSupport:
    if not cores or chip.capability < (8, 0):
        return FormatSupport("TF32", "absent", _TF32_ELSEWHERE)
    if chip.matmul_uses_tf32:
        return FormatSupport("TF32", "native", "torch uses it for FP32 matrix products now.")
    return FormatSupport(
        "TF32",
        "native",
        "FP32 matrix products use it after torch.set_float32_matmul_precision('high').",
    )


def cpu_formats(chip: CpuChip) -> tuple[FormatSupport, ...]:
    """Judge FP16, BF16, TF32 and FP8 on a CPU."""
    fp16_by = _first(_FP16_INSTRUCTIONS, chip.instructions)
    bf16_by = _first(_BF16_INSTRUCTIONS, chip.instructions)
    return (
        _cpu_16_bit("FP16", fp16_by, chip.onednn_fp16),
        _cpu_16_bit("BF16", bf16_by, chip.onednn_bf16),
        FormatSupport("TF32", "absent", _TF32_ELSEWHERE),
        FormatSupport("FP8", "emulated", _FP8_BY_CONVERSION),
    )


def _cpu_16_bit(name: str, instruction: str | None, onednn: bool) -> FormatSupport:
    if instruction and onednn:
        return FormatSupport(
            name,
            "native",
            f"The CPU multiplies it ({instruction.upper()}): large layers get faster.",
        )
    if instruction:
        return FormatSupport(
            name,
            "unknown",
            f"The CPU can ({instruction.upper()}), but torch has no oneDNN kernels for it here: "
            "measure before you rely on it.",
        )
    if onednn:
        return FormatSupport(
            name, "emulated", "oneDNN computes it by way of FP32: right, but no faster than FP32."
        )
    return FormatSupport(
        name,
        "emulated",
        "torch converts to FP32 and back: right, but far slower than FP32. "
        "mpt.simulate_amp() gives a GPU's numbers without the wait.",
    )


def mps_formats(runs_bf16: bool, runs_fp8: bool) -> tuple[FormatSupport, ...]:
    """Judge FP16, BF16, TF32 and FP8 on an Apple GPU, given what torch can store there."""
    bf16 = (
        FormatSupport(
            "BF16", "unknown", "It runs; whether by the chip itself torch doesn't say: measure."
        )
        if runs_bf16
        else FormatSupport("BF16", "absent", "torch needs macOS 14 or newer for it.")
    )
    fp8 = (
        FormatSupport("FP8", "emulated", _FP8_BY_CONVERSION)
        if runs_fp8
        else FormatSupport("FP8", "absent", "torch has no FP8 on MPS; the CPU can convert it.")
    )
    return (
        FormatSupport("FP16", "native", "Apple's GPUs compute in FP16."),
        bf16,
        FormatSupport("TF32", "absent", _TF32_ELSEWHERE),
        fp8,
    )


def look_at_mps() -> tuple[bool, bool]:
    """Ask torch whether MPS runs BF16 and FP8, by adding and by storing one number."""

    def works(dtype: torch.dtype) -> bool:
        try:
            torch.zeros(1, device="mps").to(dtype).float().cpu()
        except (RuntimeError, TypeError):
            return False
        return True

    return works(torch.bfloat16), works(torch.float8_e4m3fn)


def _first(names: tuple[str, ...], among: frozenset[str]) -> str | None:
    return next((name for name in names if name in among), None)
