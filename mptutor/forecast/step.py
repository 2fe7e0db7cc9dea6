"""One training step on fake tensors: what it computes, what it moves, what it holds.

A fake tensor knows its shape, dtype and device and has no memory; an op on it works out the shape
of the result and computes nothing.  So a step of ResNet-50 with 256 images takes two seconds and no
memory on any laptop, and passes through the same autograd, the same optimizer and, inside
`mptutor.policy.cuda_policy`, the same autocast decisions as the real step on a GPU.

Three things a GPU does differently from the CPU are put right here.  Dropout keeps a mask of one
byte an element.  Optimizers go through all parameters in one launch (``foreach``).  The gradient
scaler reads from the GPU whether a gradient was infinite, which fake tensors can't answer, so here
every step is taken.

Fake tensors *on CUDA* exist as well, but need CUDA for a backward pass; and torch's own estimators
(`torch.distributed._tools.RuntimeEstimator`) end the process on a computer without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from mptutor.experiments.recipes import MakeOptimizer, Recipe, Stepper
from mptutor.forecast.ledger import MemoryLedger
from mptutor.forecast.operations import Operation, OperationLog
from mptutor.forecast.workloads import Workload
from mptutor.policy import cuda_policy

_CPU = torch.device("cpu")


class ForecastError(RuntimeError):
    """A model whose step can't be forecast."""


@dataclass(frozen=True)
class Step:
    """What a step does, on whatever GPU.

    Attributes
    ----------
    operations
        In the order in which they run.
    memory
        Bytes of each part at the peak, see `mptutor.forecast.ledger.PARTS`.
    parameters
        How many numbers the model has learned or will learn.
    optimizer
        Such as ``"SGD"``; ``"none"`` for inference.
    """

    operations: tuple[Operation, ...]
    memory: dict[str, int]
    parameters: int
    optimizer: str


def sgd(weights: Any) -> torch.optim.Optimizer:
    """Make the optimizer of a forecast that names none: SGD with momentum 0.9."""
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9)


def take_step(
    workload: Workload,
    batch: int,
    recipe: Recipe,
    *,
    optimizer: MakeOptimizer = sgd,
    train: bool = True,
) -> Step:
    """Take a training step, or run inference on a batch, and return what it took.

    The step is one in the middle of training: optimizer states exist, gradients of the step before
    are dropped at its start.

    Raises
    ------
    ForecastError
        If the model can't run on tensors without values, or fails by itself.
    """
    if batch < 1:
        raise ValueError(f"batch: got {batch}, allowed is 1 or more")
    try:
        net = _build_on_meta(workload).train(train)
        model = recipe.prepare(net)
        with _as_on_cuda(), FakeTensorMode():
            _replace_by_fakes(net)
            if train:
                return _train(net, model, workload, batch, recipe, optimizer)
            return _infer(net, model, workload, batch, recipe)
    except Exception as error:
        raise ForecastError(f"{workload.name} can't be forecast: {_reason(error)}") from error


def _build_on_meta(workload: Workload) -> nn.Module:
    """Build the model where initial weights are neither stored nor drawn, if it lets itself."""
    try:
        with torch.device("meta"):
            return workload.build()
    except (NotImplementedError, RuntimeError):  # it reads values, as RegNet to plan its widths
        return workload.build()


def _replace_by_fakes(net: nn.Module) -> None:
    """Give a model on the meta device fake tensors on the CPU; shared ones stay shared."""
    fakes: dict[Tensor, Tensor] = {}
    for module in net.modules():
        own = [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for name, tensor in own:
            if tensor not in fakes:
                fakes[tensor] = _fake(tensor)
            setattr(module, name, fakes[tensor])


def _fake(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def _train(
    net: nn.Module,
    model: nn.Module,
    workload: Workload,
    batch: int,
    recipe: Recipe,
    optimizer: MakeOptimizer,
) -> Step:
    stepper = recipe.stepper(model, optimizer)
    stepper.scaler = _UncheckedScaler("cpu", enabled=recipe.scaler)
    for group in stepper.optimizer.param_groups:
        if group.get("foreach") is None and not group.get("fused"):
            group["foreach"] = True
    inputs = workload.batch(batch)

    def step(log: OperationLog | None = None) -> None:
        stepper.zero_grad()
        with recipe.autocast_on(_CPU):
            loss = workload.loss(model(inputs), batch)
        stepper.backward(loss)
        del loss
        if log:
            log.phase = "update"
        stepper.step()

    step()  # makes the optimizer's states
    ledger = _ledger_of(net, inputs)
    masters = () if stepper.weights[0] is next(iter(net.parameters())) else stepper.weights
    ledger.label("optimizer", [*_states(stepper), *masters])
    with ledger, OperationLog(net) as log:
        step(log)
    ledger.label("gradients", _gradients(net.parameters(), stepper.weights))
    ledger.close()
    return Step(
        operations=tuple(log.operations),
        memory=ledger.at_peak(),
        parameters=_count(net),
        optimizer=type(stepper.optimizer).__name__,
    )


def _infer(
    net: nn.Module, model: nn.Module, workload: Workload, batch: int, recipe: Recipe
) -> Step:
    inputs = workload.batch(batch)
    ledger = _ledger_of(net, inputs)
    with torch.no_grad(), ledger, OperationLog(net) as log, recipe.autocast_on(_CPU):
        model(inputs)
    ledger.close()
    return Step(tuple(log.operations), ledger.at_peak(), _count(net), optimizer="none")


def _ledger_of(net: nn.Module, inputs: Tensor) -> MemoryLedger:
    ledger = MemoryLedger()
    ledger.label("parameters", [*net.parameters(), *net.buffers()])
    ledger.label("activations", [inputs])
    return ledger


def _states(stepper: Stepper) -> list[Tensor]:
    leaves = tree_leaves([*stepper.optimizer.state.values()])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _gradients(*owners: Any) -> list[Tensor]:
    return [p.grad for owner in owners for p in owner if p.grad is not None]


def _count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Let the CPU decide as CUDA would, where a forecast sees the difference."""
    with ExitStack() as stack:
        stack.enter_context(cuda_policy())
        stack.enter_context(_OneByteDropout())
        log = logging.getLogger("torch._subclasses.fake_tensor")  # errors are raised as well
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        yield


class _OneByteDropout(TorchFunctionMode):
    """Sends dropout to the op that CUDA uses; the CPU's keeps a mask as large as its input."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return _dropout(*args, **kwargs) if func is F.dropout else func(*args, **kwargs)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


class _UncheckedScaler(torch.amp.GradScaler):
    """Takes every step, without reading whether a gradient was infinite."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if self.is_enabled():
            self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return f"it reads values of tensors on its way ({error}), and a forecast has only shapes"
    return f"{kind}: {error}"
