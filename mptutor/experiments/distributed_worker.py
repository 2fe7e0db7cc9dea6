"""What each of the two processes of `distributed` does.

It can be read as a script, and run as one::

    python -m torch.distributed.run --standalone --nproc-per-node 2 \
        --module mptutor.experiments.distributed_worker

Every rank builds the same MLP from the same seed and takes every second image of one batch, so that
the mean of the ranks' gradients is the gradient of the whole batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mptutor.data import load
from mptutor.experiments.distributed import (
    Averaged,
    DistributedResult,
    GradientsResult,
    Mean,
    MeansResult,
    Skip,
    SkipsResult,
)
from mptutor.experiments.tasks import seeded
from mptutor.formats import get_format
from mptutor.models import mlp
from mptutor.tensorcore import tensor_core

_BATCH = 256
_FP16, _BF16 = torch.float16, torch.bfloat16

#: The numbers whose mean is taken: the first fits into FP16 and its double does not, the second is
#: FP16's smallest and its half is none.
_VALUES = (40_000.0, 2.0**-24)

_HOOKS: dict[str, tuple[Callable[..., Any] | None, torch.dtype]] = {
    "no hook": (None, torch.float32),
    "fp16_compress_hook": (default_hooks.fp16_compress_hook, _FP16),
    "bf16_compress_hook": (default_hooks.bf16_compress_hook, _BF16),
}
_DDP_SCALES = (2.0**-12, 1.0, 2.0**16, 2.0**22)

#: ``param_dtype`` and ``reduce_dtype``.
_POLICIES = (
    (None, None),
    (None, _BF16),
    (None, _FP16),
    (_BF16, None),
    (_BF16, torch.float32),
    (_FP16, torch.float32),
)
_FSDP_SCALES = (1.0, 2.0**20)

_SCALE = 2.0**16


def measure() -> str:
    """Measure everything and return a `DistributedResult` as JSON, the same on every rank."""
    warnings.filterwarnings("ignore")  # about autograd hooks and CPUs, none about what is shown
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        batch = _my_part_of_a_batch()
        expected = _expected_gradients(batch)
        result = DistributedResult(
            backend=dist.get_backend(),
            ranks=dist.get_world_size(),
            means=MeansResult(tuple(_means())),
            gradients=GradientsResult((*_by_ddp(batch, expected), *_by_fsdp(batch, expected))),
            skips=SkipsResult(tuple(_skips(batch))),
        )
    finally:
        dist.destroy_process_group()
    return result.to_json()


# -- the parts -----------------------------------------------------------------------------------

Batch = tuple[Tensor, Tensor]


def _my_part_of_a_batch() -> Batch:
    train = load().train
    mine = slice(dist.get_rank(), _BATCH, dist.get_world_size())
    return train.images[mine], train.labels[mine]


def _model() -> nn.Sequential:
    return seeded(lambda: mlp((784, 128, 128, 10)), seed=0)


def _sharded(param_dtype: torch.dtype | None, reduce_dtype: torch.dtype | None) -> nn.Module:
    """Let FSDP2 shard each layer, and the model around them."""
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = _model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images).float(), labels)


def _gradients(model: nn.Module) -> Tensor:
    """Return all gradients in one FP32 vector; shards are put together."""
    grads = [p.grad for p in model.parameters()]
    whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]
    return torch.cat([g.float().flatten() for g in whole])


def _expected_gradients(batch: Batch) -> Tensor:
    """Average FP32 gradients in FP64, by hand."""
    model = _model()
    _loss(model, batch).backward()
    total = _gradients(model).double()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).float()


# -- a mean of two numbers -----------------------------------------------------------------------


def _means() -> list[Mean]:
    return [
        Mean(get_format(dtype).name, way, value, mean(torch.tensor([value], dtype=dtype)).item())
        for dtype in (torch.float32, _FP16, _BF16)
        for way, mean in _WAYS.items()
        for value in _VALUES
    ]


def _sum_then_divide(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x / dist.get_world_size()


def _average(x: Tensor) -> Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x


def _divide_then_sum(x: Tensor) -> Tensor:
    x = x / dist.get_world_size()
    dist.all_reduce(x)
    return x


_WAYS = {
    "sum, then divide": _sum_then_divide,
    "ReduceOp.AVG": _average,
    "divide, then sum": _divide_then_sum,
}

# -- gradients by DDP and by FSDP2 ---------------------------------------------------------------


def _by_ddp(batch: Batch, expected: Tensor) -> list[Averaged]:
    averaged = []
    for setting, (hook, wire) in _HOOKS.items():
        model = DistributedDataParallel(_model())
        if hook:
            model.register_comm_hook(None, hook)
        for scale in _DDP_SCALES:
            averaged.append(
                _averaged(model, batch, expected, scale, "DDP", setting, torch.float32, wire)
            )
    return averaged


def _by_fsdp(batch: Batch, expected: Tensor) -> list[Averaged]:
    averaged = []
    for param, reduce in _POLICIES:
        model = _sharded(param, reduce)
        setting = f"param_dtype={_told(param)}, reduce_dtype={_told(reduce)}"
        compute = param or torch.float32
        for scale in _FSDP_SCALES:
            with tensor_core((_FP16, _BF16)):
                averaged.append(
                    _averaged(
                        model, batch, expected, scale, "FSDP2", setting, compute, reduce or compute
                    )
                )
    return averaged


def _told(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _averaged(
    model: nn.Module,
    batch: Batch,
    expected: Tensor,
    scale: float,
    by: str,
    setting: str,
    compute: torch.dtype,
    wire: torch.dtype,
) -> Averaged:
    """Take one backward pass of a scaled loss and compare the gradients."""
    model.zero_grad()
    (_loss(model, batch) * scale).backward()
    grad = _gradients(model) / scale
    error = (grad - expected).norm() / expected.norm()
    (weights,) = {p.dtype for p in model.parameters()}
    return Averaged(
        by=by,
        setting=setting,
        computed_in=get_format(compute).name,
        wire=get_format(wire).name,
        wire_bytes=expected.numel() * wire.itemsize,
        loss_scale=scale,
        relative_error=error.item(),
        weights=_told(weights),
    )


# -- an inf on one rank --------------------------------------------------------------------------


def _skips(batch: Batch) -> list[Skip]:
    def sharded() -> nn.Module:
        return _sharded(None, None)

    return [
        _after_an_inf("DDP, GradScaler", DistributedDataParallel(_model()), batch, _amp_step()),
        _after_an_inf("FSDP2, GradScaler", sharded(), batch, _amp_step()),
        _after_an_inf("FSDP2, ShardedGradScaler", sharded(), batch, _amp_step(ShardedGradScaler)),
        _after_an_inf(
            "FSDP2, each looks at its own part", sharded(), batch, _own_step(agree=False)
        ),
        _after_an_inf("FSDP2, own look, then all agree", sharded(), batch, _own_step(agree=True)),
    ]


Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], float]


def _amp_step(kind: type = torch.amp.GradScaler) -> Step:
    """Return a step of PyTorch's scaler, which returns the scale after it."""
    scaler = kind(device="cpu", init_scale=_SCALE)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
        scaler.scale(loss).backward()
        _plant_an_inf(model)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    return step


def _own_step(*, agree: bool) -> Step:
    """Return a step of a scaler written by hand, which asks the other ranks or does not."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
        (loss * _SCALE).backward()
        _plant_an_inf(model)
        mine = [_own_part(p.grad).div_(_SCALE) for p in model.parameters()]
        found_inf = torch.tensor(float(not all(g.isfinite().all() for g in mine)))
        if agree:
            dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)
        if found_inf:
            return _SCALE / 2
        optimizer.step()
        return _SCALE

    return step


def _plant_an_inf(model: nn.Module) -> None:
    """Put an inf into a gradient where FSDP2 keeps it on rank 1 alone; DDP's loss has one."""
    if dist.get_rank() == 1 and not isinstance(model, DistributedDataParallel):
        _own_part(next(model.parameters()).grad).view(-1)[0] = float("inf")


def _own_part(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _after_an_inf(loop: str, model: nn.Module, batch: Batch, step: Step) -> Skip:
    """Take one step with an inf on rank 1, and ask every rank what it did.

    Under DDP it is in the loss, that is before the average, and under FSDP2 after it: an average
    over ranks would spread it there as well, and a single element of a gradient lies on one rank.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = [_own_part(p).detach().clone() for p in model.parameters()]
    loss = _loss(model, batch)
    if dist.get_rank() == 1 and isinstance(model, DistributedDataParallel):
        loss = loss * float("inf")
    scale = step(model, optimizer, loss)
    after = [_own_part(p).detach() for p in model.parameters()]
    moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (scale, moved))
    return Skip(loop, _SCALE, tuple(t[0] for t in told), tuple(t[1] for t in told))


if __name__ == "__main__":
    print(measure() if dist.is_available() else "This PyTorch is built without torch.distributed.")
