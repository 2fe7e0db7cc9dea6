"""What the devices at hand can do, as far as the rules need it, asked of the torch installed."""

from __future__ import annotations

import functools
from typing import Any

import torch

from mptutor.audit.events import EnterAutocast
from mptutor.audit.events_forward import Call
from mptutor.audit.trace import Trace

#: Compute capability from which on CUDA devices have Tensor Cores for a dtype.
TENSOR_CORES = {"float16": (7, 0), "bfloat16": (8, 0)}


def describe_machine(trace: Trace) -> dict[str, Any]:
    """Return what rules want to know: where 16 bits are emulated, and CUDA's op policy."""
    asked = {(e.device, e.dtype) for e in trace.of(EnterAutocast) if e.enabled}
    reasons = {f"{device} {dtype}": _slow(device, dtype) for device, dtype in asked}
    return {
        "torch": torch.__version__,
        "slow": {key: reason for key, reason in reasons.items() if reason},
        "fp32_on_cuda": _fp32_on_cuda(trace),
    }


def _slow(device: str, dtype: str) -> str | None:
    """Say why a dtype is emulated on a device, or None if it is not, or nobody knows."""
    if device == "cuda" and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        needed = TENSOR_CORES.get(dtype, (0, 0))
        if capability < needed:
            return f"compute capability {capability[0]}.{capability[1]} has no {dtype} units"
    if device == "cpu" and dtype in TENSOR_CORES:
        return _slow_on_cpu(dtype)
    return None


def _slow_on_cpu(dtype: str) -> str | None:
    ask = getattr(torch.cpu, "get_capabilities", None)
    flags = ask() if ask is not None else {}
    if flags.get("architecture") != "x86_64":
        return None
    wanted = {
        "float16": ("avx512_fp16", "amx_fp16"),
        "bfloat16": ("avx512_bf16", "amx_bf16"),
    }[dtype]
    if any(flags.get(flag) for flag in wanted):
        return None
    return f"this CPU has neither {' nor '.join(wanted)}"


def _fp32_on_cuda(trace: Trace) -> list[str]:
    """Return the functions seen under CPU autocast that CUDA's autocast runs in FP32."""
    names = {c.name for c in trace.of(Call) if c.autocast and c.device == "cpu"}
    return sorted(names & _cuda_fp32_ops()) if names else []


@functools.cache
def _cuda_fp32_ops() -> frozenset[str]:
    """Ask the installed torch for CUDA's FP32 list: a tenth of a second, once."""
    from mptutor.policy.classes import CastClass, cast_classes

    fp32 = (CastClass.FP32, CastClass.FP32_DTYPE, CastClass.FP32_APPEND)
    return frozenset(
        op.partition(".")[0] for op, cast in cast_classes("cuda").items() if cast in fp32
    )
