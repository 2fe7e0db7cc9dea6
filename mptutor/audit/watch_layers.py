"""Watching what comes out of each layer, and the gradient that comes back to it.

Two global forward hooks see every module, whatever model it is in. Of each leaf's output the
dtype and the range are taken down, and a hook on the output tensor itself catches the gradient
that arrives there. A *full backward hook* would be the obvious choice and is not used: it breaks
user code, `nn.ReLU(inplace=True)` raises under it.

The gradient at a layer's output is the place to look for underflow: under autocast it is a 16-bit
tensor, while the parameters' gradients have been cast to FP32 by the time anybody sees them.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from mptutor.audit.events_forward import Forward, LayerGradient
from mptutor.audit.graphs import GraphCounter
from mptutor.audit.recorder import Recorder, described
from mptutor.audit.seams import Seams
from mptutor.audit.tensors import (
    HALF,
    dtype_name,
    in_memory_order,
    is_fake,
    lo_hi,
    readable,
    sample,
    tensors_in,
)
from mptutor.audit.watch_scaler import ScalerWatch
from mptutor.census import take_census
from mptutor.formats import FP16


class LayerWatch:
    """Records forward passes of modules and the gradients at their outputs."""

    def __init__(self, recorder: Recorder, scalers: ScalerWatch) -> None:
        self.recorder = recorder
        self.scalers = scalers
        self._graphs = GraphCounter()

    def install(self, seams: Seams) -> None:
        """Start to watch."""
        seams.hook(register_module_forward_pre_hook, self._before)
        seams.hook(register_module_forward_hook, self._after, always_call=True)
        self._quiet_gradient = seams.quietly(self._gradient)

    def _before(self, module: nn.Module, inputs: Any) -> None:
        thread = self.recorder.thread
        names = self.recorder.module_names
        if not thread.modules and module not in names:
            for name, part in module.named_modules():
                names.setdefault(part, name or type(module).__name__)
        thread.modules.append(module)
        thread.errors_before.append(sys.exc_info()[1])

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        thread = self.recorder.thread
        error_before = None
        while thread.modules:
            error_before = thread.errors_before.pop()
            if thread.modules.pop() is module:
                break
        error = sys.exc_info()[1]
        error = None if error is error_before else error
        if torch._C._current_autograd_node() is not None:
            return  # checkpointing computes the layer once more
        root, leaf = not thread.modules, _computes_by_itself(module)
        if root or error is not None or (leaf and self.recorder.look_at_layers):
            self._record(module, inputs, output, root, leaf, error)

    def _record(
        self,
        module: nn.Module,
        inputs: Any,
        output: Any,
        root: bool,
        leaf: bool,
        error: BaseException | None,
    ) -> None:
        thread = self.recorder.thread
        ins, outs = _floating(inputs), _floating(output)
        device = next((x.device.type for x in (*ins, *outs, *module.parameters())), "cpu")
        weight = getattr(module, "weight", None)
        weight = weight if isinstance(weight, Tensor) else None
        name = self.recorder.module_names.get(module, type(module).__name__)
        if error is not None:
            if thread.error_seen == id(error):
                return  # an outer module, which sees the same exception pass by
            thread.error_seen = id(error)
        event = self.recorder.record(
            Forward,
            name=name,
            layer=type(module).__name__,
            root=root,
            leaf=leaf,
            training=module.training,
            learns=any(x.requires_grad for x in outs),
            device=device,
            autocast=self.recorder.autocast_dtype(device),
            depth=thread.autocast_depth,
            region=thread.region,
            inputs=[self._values(x, i == 0) for i, x in enumerate(ins)],
            outputs=[],
            weight=self._values(weight, leaf, "parameter") if weight is not None else None,
            product=_product(module, outs),
            graphs_alive=self._graphs.count_and_add(outs) if root else 0,
            main_in_autocast=self._main_is_in_autocast(),
            error=str(error).strip().split("\n")[0] if error is not None else None,
        )
        if error is not None:
            return
        event.outputs = [self._values(x, i == 0, name) for i, x in enumerate(outs)]
        if leaf and self.recorder.look_at_layers:
            self._await_gradient(event, outs)

    def _values(self, x: Tensor, measure: bool, made_by: str | None = None):
        if measure and readable(x) and self.recorder.look_at_layers:
            return self.recorder.values_of(x, made_by)
        return described(x, made_by)

    def _main_is_in_autocast(self) -> bool:
        """Say whether this is another thread, while the audit's own is inside autocast."""
        elsewhere = threading.get_ident() != self.recorder.main_thread
        return elsewhere and self.recorder.main.autocast_depth > 0

    # -- gradients -------------------------------------------------------------------------------

    def _await_gradient(self, event: Forward, outs: list[Tensor]) -> None:
        for x in outs[:1]:
            if x.dtype in HALF and x.requires_grad and x.grad_fn is not None and readable(x):
                x.register_hook(functools.partial(self._quiet_gradient, event.name, event.layer))

    def _gradient(self, name: str, layer: str, gradient: Tensor) -> None:
        if not readable(gradient):
            return
        event = self.recorder.record(
            LayerGradient, name=name, layer=layer, dtype=dtype_name(gradient.dtype)
        )
        lo, hi = lo_hi(gradient)
        self.recorder.later(event, "lo", lo)
        self.recorder.later(event, "hi", hi)
        if gradient.dtype is torch.float16:
            values = sample(in_memory_order(gradient)).clone()
            count = functools.partial(_count, event, values, self.scalers.scale_now)
            self.recorder.at_end_of_step(count)


def _count(event: LayerGradient, values: Tensor, scale: Tensor | None) -> None:
    """Count what FP16 has flushed, and what it would have without the scale."""
    factor = float(scale) if scale is not None and float(scale) > 0 else 1.0
    census = take_census(values)
    event.total = census.total
    event.zeros = census.zeros
    event.subnormal = census.subnormal(FP16)
    power_of_two = math.frexp(factor)[0] == 0.5
    unscaled = census.scaled(1 / factor) if power_of_two else take_census(values.float() / factor)
    event.flushed_without_scale = unscaled.flushed(FP16)


def _floating(value: Any) -> list[Tensor]:
    return [x for x in tensors_in(value) if x.is_floating_point() and (readable(x) or is_fake(x))]


def _computes_by_itself(module: nn.Module) -> bool:
    """Say whether a module calls no others: attention holds one, but takes only its weights."""
    return not module._modules or isinstance(module, nn.MultiheadAttention)


def _product(module: nn.Module, outs: list[Tensor]) -> tuple[int, int, int] | None:
    """Return (rows, outputs, inputs) of the matrix product a layer comes to.

    Of `nn.MultiheadAttention` it is that of the projections to queries, keys and values.
    """
    if isinstance(module, nn.MultiheadAttention) and outs:
        width = module.embed_dim
        return outs[0].numel() // width, 3 * width, width
    weight = getattr(module, "weight", None)
    if not outs or not isinstance(weight, Tensor) or not weight.numel():
        return None
    convolution = isinstance(module, nn.modules.conv._ConvNd) and not module.transposed
    if isinstance(module, nn.Linear) or convolution:
        return outs[0].numel() // weight.shape[0], weight.shape[0], weight[0].numel()
    return None
