"""The same small training as raw loops: listings to be read, run and compared.

Each function here is a whole training loop. It gets a model, a loss function, batches that are on
the device already, and the device; it returns the loss of every step. `plain` is the loop that one
starts from. `mptutor.experiments.framework_loops` has the same loop for each framework, and
`mptutor.experiments.listings` counts how many lines each takes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all loops: SGD, with which even FP16 weights train."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train in FP32."""
    optimizer = sgd(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def amp_fp16(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with torch.amp in FP16."""
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler(device.type)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def amp_fp16_for_cuda(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with torch.amp in FP16, as it is written for a GPU, on whatever is there."""
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def amp_bf16(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with torch.amp in BF16."""
    optimizer = sgd(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def low_weights(
    model: nn.Module,
    loss_fn: nn.Module,
    batches: Batches,
    device: torch.device,
    dtype: torch.dtype,
) -> list[float]:
    """Train with everything in 16 bits, the loss too."""
    model.to(dtype)
    optimizer = sgd(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x.to(dtype)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def low_weights_fp32_loss(
    model: nn.Module,
    loss_fn: nn.Module,
    batches: Batches,
    device: torch.device,
    dtype: torch.dtype,
) -> list[float]:
    """Train with everything in 16 bits, but for the loss."""
    model.to(dtype)
    optimizer = sgd(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x.to(dtype)).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fsdp(
    model: nn.Module, loss_fn: nn.Module, batches: Batches, device: torch.device
) -> list[float]:
    """Train with FSDP2 in BF16, in a single process that holds the only shard."""
    from torch import distributed
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    mesh = distributed.init_device_mesh(device.type, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = sgd(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
