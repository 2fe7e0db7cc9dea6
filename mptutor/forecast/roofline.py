"""What a step costs on a GPU: the roofline, with the cost of a launch.

An operation takes the longest of three times: what its arithmetic takes at the rate of the units it
runs on, what its bytes take at the bandwidth of the memory, and what it takes to launch a kernel at
all.  Williams, Waterman and Patterson, *Roofline* (2009), drew the first two as a roof over the
arithmetic intensity, FLOP per byte; small networks live under the third.

No kernel gets what the data sheet promises.  `Efficiency` says what share it gets.  The constants
were searched for on a coarse grid, over twenty published ResNet-50 measurements on six GPUs, and
then rounded; `gddr`, `tensor_cores` and `cores` were settled after a look at the other rows of
`tests/published.py`, BERT and twenty networks for images, so those are not wholly unseen.

The layout of images counts as much as their format.  Tensor Cores read channels last (NHWC), and
torch's default is channels first (NCHW), so cuDNN transposes what goes into a convolution and what
comes out, which moves every byte twice more.  That is why published speed-ups of AMP in NHWC over
TF32 in NCHW are larger than those of AMP alone.

What this does not know: which algorithm cuDNN takes, shapes that fit the units badly, caches,
clocks that rise or throttle, several GPUs, waiting for data, code fused by ``torch.compile``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mptutor.forecast.gpus import Gpu
from mptutor.forecast.operations import Operation


@dataclass(frozen=True)
class Efficiency:
    """What kernels get of a data sheet's rates.

    Attributes
    ----------
    cores, cores_convolution, tensor_cores
        Share of the arithmetic rate: of FP32 products, of FP32 convolutions, which cuDNN computes
        with fewer multiplications than are counted (Winograd), and of anything on Tensor Cores.
        The first is from a benchmark of matrix products, 14 of 16 TFLOP/s on a V100
        (github.com/mli/transformers-benchmarks).
    hbm, gddr
        Share of the bandwidth, by the kind of memory, for bytes counted once an operand: a kernel
        that reads an operand twice, as batch norm does, is part of the share.
    transpose
        How often a convolution in NCHW on Tensor Cores moves its bytes more, there and back.
    launch_s
        The least that any operation takes; ordinary PyTorch, a launch an operation.
    """

    cores: float = 0.88
    cores_convolution: float = 1.0
    tensor_cores: float = 0.75
    hbm: float = 0.60
    gddr: float = 0.75
    transpose: float = 2.0
    launch_s: float = 4e-6


FITTED = Efficiency()


@dataclass(frozen=True)
class Cost:
    """The three times of an operation, in seconds; it takes the longest of them."""

    arithmetic_s: float
    memory_s: float
    launch_s: float

    @property
    def seconds(self) -> float:
        """What the operation takes."""
        return max(self.arithmetic_s, self.memory_s, self.launch_s)

    @property
    def bound(self) -> str:
        """What limits it: ``"arithmetic"``, ``"memory"`` or ``"launch"``."""
        if self.seconds == self.launch_s:
            return "launch"
        return "memory" if self.seconds == self.memory_s else "arithmetic"


def cost(
    operation: Operation,
    gpu: Gpu,
    *,
    channels_last: bool = False,
    tf32_products: bool | None = None,
    efficiency: Efficiency = FITTED,
) -> Cost:
    """Return what an operation takes on a GPU.

    Parameters
    ----------
    channels_last
        Images are in NHWC, so convolutions transpose nothing.
    tf32_products
        See `arithmetic_rate`.
    """
    flops, on_tensor_cores = arithmetic_rate(operation, gpu, tf32_products)
    share = _share(operation, on_tensor_cores, efficiency)
    moved_bytes = operation.moved_bytes
    if operation.kind == "convolution" and on_tensor_cores and not channels_last:
        moved_bytes *= 1 + efficiency.transpose
    return Cost(
        arithmetic_s=operation.flop / (flops * share),
        memory_s=moved_bytes / bandwidth(gpu, efficiency),
        launch_s=efficiency.launch_s,
    )


def _share(operation: Operation, on_tensor_cores: bool, efficiency: Efficiency) -> float:
    if on_tensor_cores:
        return efficiency.tensor_cores
    if operation.kind == "convolution":
        return efficiency.cores_convolution
    return efficiency.cores


def bandwidth(gpu: Gpu, efficiency: Efficiency = FITTED) -> float:
    """Return the bytes a second that kernels get."""
    return gpu.bytes_per_s * (efficiency.hbm if gpu.memory_kind == "HBM" else efficiency.gddr)


def arithmetic_rate(
    operation: Operation, gpu: Gpu, tf32_products: bool | None = None
) -> tuple[float, bool]:
    """Return the data sheet's FLOP a second for an operation, and whether on Tensor Cores.

    FP32 convolutions run in TF32, where there is TF32, if ``torch.backends.cudnn.allow_tf32`` says
    so, other products if ``torch.backends.cuda.matmul.allow_tf32`` does or `tf32_products` is True.
    BF16 on a GPU without units for it is converted and computed in FP32.
    """
    if operation.dtype is torch.float16:
        return gpu.fp16_flops, True
    if operation.dtype is torch.bfloat16:
        return (gpu.bf16_flops, True) if gpu.bf16_flops else (gpu.fp32_flops, False)
    if operation.kind == "convolution":
        allowed = torch.backends.cudnn.allow_tf32
    else:
        allowed = torch.backends.cuda.matmul.allow_tf32 if tf32_products is None else tf32_products
    if operation.flop and gpu.tf32_flops and allowed:
        return gpu.tf32_flops, True
    return gpu.fp32_flops, False
