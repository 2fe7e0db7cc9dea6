"""Watching gradients come to be, be added to, clipped and cleared.

`Tensor.backward`, `autograd.backward`, `autograd.grad` and `torch.func.grad` all enter the engine
through one function. Before and after it, the gradients of every optimizer are compared by
identity and version: that tells whom this backward fed, and whether it added to gradients that
were there already. The four clipping functions of torch share a helper, found on the same stack.

That a loss was scaled is read off the graph: `scaler.scale` marks the node it makes, and the mark
is looked for near the root of each backward. It survives sums of scaled losses and divisions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mptutor.audit.events import Backward, Clip, GradOf, ZeroGrad
from mptutor.audit.graphs import GraphCounter
from mptutor.audit.recorder import Recorder, gradients_of
from mptutor.audit.seams import Outcome, Seams
from mptutor.audit.site import raised_in_backward
from mptutor.audit.tensors import dtype_name, lo_hi, readable, sample, tensors_in
from mptutor.audit.watch_scaler import SCALED_BY, ScalerWatch

clip_module = sys.modules["torch.nn.utils.clip_grad"]

#: How many nodes from the root on the mark of a scaled loss is looked for.
_NODES = 48

Fingerprint = dict[str, dict[int, int]]


class GradientWatch:
    """Records backward passes, clipping and zeroing.

    Attributes
    ----------
    owner_of : dict
        The optimizer to which the gradient at an address belongs, as of the last backward.
    scaled_grads : weak dict
        Results of `autograd.grad` on a scaled loss, with the event.
    """

    def __init__(self, recorder: Recorder, scalers: ScalerWatch, scaled_grads: Any) -> None:
        self.recorder = recorder
        self.scalers = scalers
        self.scaled_grads = scaled_grads
        self.owner_of: dict[int, str] = {}
        self.left: Fingerprint = {}
        self._graphs = GraphCounter()

    def install(self, seams: Seams) -> None:
        """Start to watch."""
        seams.around(torch.autograd, "_engine_run_backward", self._engine_ran)
        seams.around(torch.optim.Optimizer, "zero_grad", self._optimizer_zeroed)
        seams.around(torch.nn.Module, "zero_grad", self._module_zeroed)
        seams.around(clip_module, "_group_tensors_by_device_and_dtype", self._clipped)

    # -- backward --------------------------------------------------------------------------------

    def _engine_ran(self, roots: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        thread = self.recorder.thread
        if thread.engine_runs or torch._C._current_autograd_node() is not None:
            yield  # checkpointing runs the engine again inside a backward
            return
        roots = list(tensors_in(list(roots)))
        thread.engine_runs += 1
        accumulates = bool(kwargs.get("accumulate_grad"))
        if accumulates:
            event = self._backward(roots)
            old = self.fingerprint()
            event.before = self._sizes_before()
        else:
            create_graph = bool(args[2]) if len(args) > 2 else False
            scaler = _found_near_root(roots)[0]
            event = self.recorder.record(GradOf, scaler=scaler, create_graph=create_graph)
        outcome: Outcome = yield
        thread.engine_runs -= 1
        if outcome.error is not None:
            event.error = outcome.error_text
            event.error_site = raised_in_backward(outcome.error)
        if not accumulates:
            self._remember_results(event, outcome)
            return
        self.left = self.fingerprint()
        event.fed = _fed(old, self.left)

    def _backward(self, roots: list[Tensor]) -> Backward:
        device = roots[0].device.type if roots else "cpu"
        scaler, factor = _found_near_root(roots)
        thread = self.recorder.thread
        event = self.recorder.record(
            Backward,
            dtypes=[dtype_name(r.dtype) for r in roots],
            scaler=scaler,
            factor=factor,
            autocast=self.recorder.autocast_dtype(device) if thread.autocast_depth else None,
            region=thread.region,
            graphs_alive=self._graphs.count_and_add(roots),
        )
        if roots and readable(roots[0]):
            lo, hi = lo_hi(roots[0])
            self.recorder.later(event, "lo", lo)
            self.recorder.later(event, "hi", hi)
        if scaler is not None and self.scalers.scale_now is not None:
            self.recorder.later(event, "scale", self.scalers.scale_now)
        return event

    def fingerprint(self) -> Fingerprint:
        """Return identity and version of every gradient, by optimizer."""
        self.owner_of = {}
        prints: Fingerprint = {}
        for optimizer in list(self.recorder.optimizers):
            name, grads = self.recorder.name(optimizer), gradients_of(optimizer)
            prints[name] = {id(g): g._version for g in grads}
            for g in grads:
                if g.layout is torch.strided and type(g) is Tensor:
                    self.owner_of[g.data_ptr()] = name
        return prints

    def edited(self, optimizer: torch.optim.Optimizer) -> bool:
        """Say whether gradients differ from what the last backward left."""
        now = {id(g): g._version for g in gradients_of(optimizer)}
        return self.left.get(self.recorder.name(optimizer)) != now

    def _sizes_before(self) -> dict[str, float | None]:
        """How large the gradients are to which this backward may add: zero, if they were cleared.

        Clearing by hand (`p.grad.zero_()`) passes no seam, so it has to be read off the values.
        """
        sizes: dict[str, float | None] = {}
        for optimizer in list(self.recorder.optimizers):
            grads = [g for g in gradients_of(optimizer) if readable(g)][:4]
            if grads:
                name = self.recorder.name(optimizer)
                sizes[name] = None
                largest = [sample(g, 256).abs().amax().float() for g in grads]
                self.recorder.later(sizes, name, torch.stack(largest).amax())
        return sizes

    def _remember_results(self, event: GradOf, outcome: Outcome) -> None:
        for gradient in tensors_in(outcome.result):
            if event.scaler is not None:
                self.scaled_grads[gradient] = event
            if self.recorder.look_at_calls and readable(gradient):
                self.recorder.values_of(gradient, "autograd.grad", made=True)

    # -- clearing and clipping -------------------------------------------------------------------

    def _optimizer_zeroed(
        self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        yield
        self._zeroed([optimizer])

    def _module_zeroed(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield
        mine = {id(p) for p in module.parameters()}
        self._zeroed([o for o in list(self.recorder.optimizers) if _all_of(o, mine)])

    def _zeroed(self, optimizers: list[torch.optim.Optimizer]) -> None:
        if optimizers:
            self.recorder.record(
                ZeroGrad,
                optimizers=[self.recorder.name(o) for o in optimizers],
                within_step=self.recorder.thread.silent_steps > 0,
            )

    def _clipped(self, groups: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != clip_module.__file__:
            frame = frame.f_back
        name = frame.f_code.co_name if frame is not None else ""
        if name not in ("_clip_grads_with_norm_", "clip_grad_value_"):
            return  # a norm was only looked at
        clipped = {id(g) for g in groups[0]}
        held = {
            self.recorder.name(o): {id(g) for g in gradients_of(o)} & clipped
            for o in list(self.recorder.optimizers)
        }
        owners = [name for name, mine in held.items() if mine]
        shared = {
            name: [other for other in owners if other != name and held[name] <= held[other]]
            for name in owners
        }
        limit = frame.f_locals.get("max_norm", frame.f_locals.get("clip_value"))
        event = self.recorder.record(
            Clip, how=name.strip("_"), optimizers=owners, shared=shared, limit=float(limit)
        )
        norm = frame.f_locals.get("total_norm")
        if isinstance(norm, Tensor):
            self.recorder.later(event, "norm", norm.detach())


def _all_of(optimizer: torch.optim.Optimizer, parameters: set[int]) -> bool:
    """Say whether all gradients of this optimizer were among those cleared."""
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    cleared = [p for p in mine if id(p) in parameters]
    return bool(cleared) and all(p.grad is None or id(p) in parameters for p in mine)


def _fed(old: Fingerprint, new: Fingerprint) -> dict[str, str]:
    fed = {}
    for optimizer, grads in new.items():
        before = old.get(optimizer, {})
        changed = [g for g, version in grads.items() if before.get(g) != version]
        if changed:
            fed[optimizer] = "added" if any(g in before for g in changed) else "fresh"
    return fed


def _found_near_root(roots: list[Tensor]) -> tuple[str | None, float | None]:
    """Return the scaler that scaled this loss, or the factor it was multiplied by by hand."""
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    for node in nodes:  # grows while it is read
        if SCALED_BY in node.metadata:
            return node.metadata[SCALED_BY], None
        if len(nodes) < _NODES:
            nodes += [child for child, _ in node.next_functions if child is not None]
    for node in nodes[:4]:
        other = getattr(node, "_saved_other", None) if node.name() == "MulBackward0" else None
        if isinstance(other, Tensor) and other.numel() == 1 and other.device.type == "cpu":
            return None, float(other)
    return None, None
