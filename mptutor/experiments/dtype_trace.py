"""Which dtype everything in a model has, in one training step under autocast.

One forward and one backward pass run under autocast, and every layer is asked for the dtype of what
went in, of its parameters, of what came out, of the gradient that came back to its output, and of
its parameters' gradients. On a CPU the pass runs under CUDA's policy (`mptutor.simulate_amp`),
unless CPU autocast itself is asked for; on a GPU it is the GPU's own.

Three things show, and each contradicts something often said. Parameters and their gradients are
FP32 throughout: there is no 16-bit model. Batch norm runs in the dtype it is given, with FP32
parameters, where layer norm comes out FP32 under CUDA's policy. The gradient of an activation has
the activation's dtype, and that is where FP16's range is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.devices import pick_device
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import seeded
from mptutor.models import char_transformer, mlp, small_cnn
from mptutor.simulate import simulate_amp

#: Whose policy a trace can follow.
POLICIES = ("cuda", "cpu")


@dataclass(frozen=True)
class LayerDtypes:
    """The dtypes around one layer, as short names; None where there is nothing to have one."""

    layer: str
    kind: str
    input: str | None
    weight: str | None
    output: str
    output_grad: str | None
    weight_grad: str | None


@dataclass(frozen=True)
class DtypeTraceResult(Result):
    """One step of one model; ``policy`` says whose autocast, ``dtype`` what it lowers to."""

    model: str
    policy: str
    dtype: str
    device: str
    loss: str
    layers: tuple[LayerDtypes, ...]

    def layer(self, name: str) -> LayerDtypes:
        """Return the dtypes around the layer of this name."""
        for layer in self.layers:
            if layer.layer == name:
                return layer
        raise ValueError(f"name: got {name!r}, allowed are {[x.layer for x in self.layers]}")

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every layer, in the order they ran."""
        return [
            {
                "layer": x.layer,
                "kind": x.kind,
                "input": x.input,
                "weight": x.weight,
                "output": x.output,
                "gradient of output": x.output_grad,
                "gradient of weight": x.weight_grad,
            }
            for x in self.layers
        ]


def run_dtype_trace(
    model: str = "small_cnn",
    *,
    policy: str = "cuda",
    dtype: torch.dtype = torch.float16,
    batch_size: int = 8,
    device: torch.device | str | None = None,
) -> DtypeTraceResult:
    """Trace one step of ``"small_cnn"``, ``"mlp"`` or ``"transformer"``.

    Parameters
    ----------
    model
        The name of one of the course's networks.
    policy
        ``"cuda"``, followed on a CPU too, or ``"cpu"``.
    dtype
        What autocast lowers to.
    batch_size
        Inputs in the step; they are random, since dtypes do not depend on values.
    device
        Where; the default is `pick_device()`, and the CPU for the CPU's policy.
    """
    if model not in _MODELS:
        raise ValueError(f"model: got {model!r}, allowed are {', '.join(_MODELS)}")
    if policy not in POLICIES:
        raise ValueError(f"policy: got {policy!r}, allowed are {POLICIES}")
    on_cpu = policy == "cpu"
    device = torch.device(device or ("cpu" if on_cpu else pick_device()))
    build, sample = _MODELS[model]
    net = seeded(build, 0).to(device)
    inputs, targets = (x.to(device) for x in sample(batch_size))
    layers, loss = _trace(net, inputs, targets, dtype, _arithmetic(policy, dtype, device))
    return DtypeTraceResult(model, policy, _name(dtype), str(device), loss, layers)


def _arithmetic(
    policy: str, dtype: torch.dtype, device: torch.device
) -> AbstractContextManager[object]:
    simulated = policy == "cuda" and device.type == "cpu"
    return simulate_amp(dtype) if simulated else nullcontext()


def _trace(
    net: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    arithmetic: AbstractContextManager[object],
) -> tuple[tuple[LayerDtypes, ...], str]:
    seen: dict[str, dict[str, str | None]] = {}
    leaves = {name: m for name, m in net.named_modules() if not list(m.children())}
    hooks = [m.register_forward_hook(_watch(seen, name)) for name, m in leaves.items()]
    try:
        with arithmetic:
            with torch.autocast(inputs.device.type, dtype):
                loss = F.cross_entropy(net(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    layers = tuple(
        LayerDtypes(
            name,
            type(leaves[name]).__name__,
            weight=_dtype_of(getattr(leaves[name], "weight", None)),
            weight_grad=_dtype_of(getattr(getattr(leaves[name], "weight", None), "grad", None)),
            **around,
        )
        for name, around in seen.items()
    )
    return layers, _name(loss.dtype)


def _watch(seen: dict[str, dict[str, str | None]], name: str) -> Callable[..., None]:
    """Return a forward hook that writes down the dtypes around a layer."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        around = {"input": _dtype_of(inputs[0]), "output": _dtype_of(output), "output_grad": None}
        seen[name] = around
        if output.requires_grad:
            output.register_hook(lambda grad: around.update(output_grad=_dtype_of(grad)))

    return hook


def _dtype_of(x: object) -> str | None:
    return _name(x.dtype) if isinstance(x, Tensor) else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _images(batch_size: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, *shape), torch.arange(batch_size) % 10


def _text(batch_size: int) -> tuple[Tensor, Tensor]:
    codes = torch.arange(batch_size * 64).reshape(batch_size, 64) % 96
    return codes, (codes + 1) % 96


_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]]]] = {
    "small_cnn": (small_cnn, lambda b: _images(b, 3, 32, 32)),
    "mlp": (mlp, lambda b: _images(b, 784)),
    "transformer": (char_transformer, _text),
}
