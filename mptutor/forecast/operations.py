"""Watches a step and writes down, for every operation on the device, its work and its bytes.

An op below autograd and autocast (`aten.mm`, `aten.native_batch_norm`, `aten.add_`) becomes one
kernel on a GPU, or a few.  Its work is counted by torch's own formulas (`torch.utils.flop_counter`,
two operations a multiply-add); only matrix products and convolutions have one, as everything else
is limited by memory.  Its bytes are those of all operands and results, each moved once.

Which layer an op belongs to is known while the forward pass is in a module.  Backward has no
modules, but every node of the graph has a number that rises as the forward pass makes nodes.  So
the number of the node at work tells which module was active when it was made.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

#: What FLOP counting lacks: attention as the CPU's kernel is called.
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward

#: They hand out memory and leave what is in it.
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


@dataclass(frozen=True)
class Operation:
    """One op of a step.

    Attributes
    ----------
    name
        Such as ``"mm"``.
    layer, phase
        The module it belongs to, ``"layer1.0.conv2"``, ``""`` if none, and ``"forward"``,
        ``"backward"`` or ``"update"``.
    dtype
        Of its first floating-point operand: what a product is computed in.
    flop
        Floating-point operations; 0 unless it is a product.
    moved_bytes
        Of its operands and results.
    kind
        ``"convolution"``, ``"product"`` or ``"pointwise"``, which stands for all the rest.
    narrowest
        Of a convolution, the channels a group reads or writes, whichever are fewer; else 0.
    """

    name: str
    layer: str
    phase: str
    dtype: torch.dtype
    flop: int
    moved_bytes: int
    kind: str
    narrowest: int = 0


class OperationLog(TorchDispatchMode):
    """Logs the operations of the code in its ``with`` block.

    Set `phase` to ``"update"`` before the optimizer runs; forward and backward are told apart here.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.phase = "forward"
        self._layers = _LayerClock(model)

    def __enter__(self) -> OperationLog:
        self._layers.start()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._layers.stop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        results = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if _touches_memory(func, operands, results):
            self._log(func, args, kwargs, result, operands, results)
        return result

    def _log(
        self,
        func: Any,
        args: tuple,
        kwargs: dict,
        result: Any,
        operands: list[Tensor],
        results: list[Tensor],
    ) -> None:
        node = torch._C._current_autograd_node()
        flop = _count_flop(func, args, kwargs, result)
        convolution = "convolution" in func.__name__
        self.operations.append(
            Operation(
                name=func.overloadpacket.__name__,
                layer="" if self.phase == "update" else self._layers.at(node),
                phase="backward" if node is not None else self.phase,
                dtype=_compute_dtype([*operands, *results]),
                flop=flop,
                moved_bytes=sum(map(_nbytes, [*operands, *results])),
                kind="convolution" if convolution else "product" if flop else "pointwise",
                narrowest=_narrowest(*_convolved(func, args)) if convolution else 0,
            )
        )


class _LayerClock:
    """Knows which module's forward is running, and which one ran when a node was made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._stack: list[str] = [""]
        self._since = [0]
        self._layer_since = [""]
        self._hooks: list[Any] = []

    def start(self) -> None:
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._enter(name)))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def at(self, node: Any) -> str:
        """Name the module of a node of the graph; without one, that of now."""
        if node is None:
            return self._stack[-1]
        return self._layer_since[bisect.bisect(self._since, node._sequence_nr()) - 1]

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._stack.append(name)
            self._mark()

        return hook

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._since.append(torch.autograd._get_sequence_nr())
        self._layer_since.append(self._stack[-1])


def _touches_memory(func: Any, operands: list[Tensor], results: list[Tensor]) -> bool:
    """Tell whether an op reads or writes tensors, other than to make a view of one."""
    if func._schema.is_mutable:
        return True
    if not results or func.overloadpacket.__name__ in _ALLOCATIONS:
        return False
    seen = {x.untyped_storage()._cdata for x in operands}
    return any(x.untyped_storage()._cdata not in seen for x in results)


def _count_flop(func: Any, args: tuple, kwargs: dict, result: Any) -> int:
    packet = func.overloadpacket
    if packet is aten.convolution:
        return _convolution_flop(args[0], args[1], result, transposed=args[6])
    if packet is aten.convolution_backward:
        grad, images, weight = args[:3]
        products = sum(args[10][:2])  # towards the images, towards the weight
        return products * _convolution_flop(images, weight, grad, transposed=args[7])
    if packet is _ATTENTION:
        q, k, v = args[:3]
        return flop_counter.sdpa_flop_count(q.shape, k.shape, v.shape)
    if packet is _ATTENTION_BACKWARD:
        grad, q, k, v = args[:4]
        return flop_counter.sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)
    formula = flop_counter.flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def _convolution_flop(images: Tensor, weight: Tensor, out: Tensor, *, transposed: bool) -> int:
    """Count a multiply and an add for each use of a weight, groups or not.

    Torch's own formula counts the backward pass of a convolution in groups as if it had none.
    """
    positions = images if transposed else out  # out x in / groups x ..., or in x out / groups x ...
    return 2 * positions.numel() * weight[0].numel()


def _compute_dtype(tensors: list[Tensor]) -> torch.dtype:
    return next((x.dtype for x in tensors if x.is_floating_point()), torch.float32)


def _nbytes(x: Tensor) -> int:
    """Return the bytes of a tensor in memory; an expanded one has fewer than its elements say."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


def _narrowest(images: Tensor, weight: Tensor) -> int:
    """Return the fewest channels on either side of a group; a weight is out x in / groups x ..."""
    groups = images.shape[1] // weight.shape[1]
    return min(weight.shape[1], weight.shape[0] // max(groups, 1))


def _convolved(func: Any, args: tuple) -> tuple[Tensor, Tensor]:
    """Return images and weight; backward has the gradient of the output before them."""
    return args[1:3] if func.overloadpacket is aten.convolution_backward else args[:2]
