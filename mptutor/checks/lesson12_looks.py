"""Ways to look at a training step, right and wrong: what the judge of task 12.1 compares with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mptutor.checks.probes_looks import take_a_look

Look = Callable[[nn.Module, torch.optim.Optimizer, Callable[[], None]], dict[str, Any]]


def looking(
    *,
    layers: str = "linear",
    weights: str = "optimizer",
    when: str = "at the step",
    scale: str = "ratio",
    removes: bool = True,
    steps: int = 1,
) -> Look:
    """Return somebody who looks as the arguments say, and else as one should.

    Parameters
    ----------
    layers
        Whose outputs: ``"linear"`` layers, ``"every"`` module, or the ``"model"`` alone.
    weights
        Those of the ``"optimizer"``, or all of the ``"model"``.
    when
        Gradients are looked at ``"at the step"`` of the optimizer, or ``"after"`` all is over.
    scale
        A ``"ratio"``, ``"one"`` always, ``"guessed"`` from FP16, or the ``"inverse"``.
    removes
        Whether hooks are taken away.
    steps
        How many are taken.
    """

    def look(model: nn.Module, optimizer: Any, step: Callable[[], None]) -> dict[str, Any]:
        outputs: set[torch.dtype] = set()
        gradients: set[torch.dtype] = set()
        before: dict[Tensor, float] = {}
        ratios: list[float] = []

        def see_output(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs.add(output.dtype)

        def see_backward(w: Tensor) -> None:
            before[w] = _largest(w)

        def see_step(*_: Any) -> None:
            for w in _trained(optimizer):
                if w.grad is not None:
                    gradients.add(w.grad.dtype)
                    ratios.append(before[w] / _largest(w))

        hooks = [m.register_forward_hook(see_output) for m in _modules(model, layers)]
        hooks += [w.register_post_accumulate_grad_hook(see_backward) for w in _trained(optimizer)]
        if when == "at the step":
            hooks.append(optimizer.register_step_pre_hook(see_step))
        for _ in range(steps):
            step()
        if when == "after":
            see_step()
        for hook in hooks if removes else ():
            hook.remove()
        owners = _trained(optimizer) if weights == "optimizer" else model.parameters()
        return {
            "layers": outputs,
            "weights": {w.dtype for w in owners},
            "gradients": gradients,
            "scale": _scale(scale, ratios, outputs),
        }

    return look


def seen_by(look: Look) -> Callable[..., Any]:
    """Return what the probe tells of somebody's look, as a function of a case's inputs."""
    return lambda *inputs: take_a_look(look, inputs)


def _modules(model: nn.Module, which: str) -> Iterable[nn.Module]:
    if which == "model":
        return [model]
    every = [m for m in model.modules() if not list(m.children())]
    return every if which == "every" else [m for m in every if isinstance(m, nn.Linear)]


def _trained(optimizer: Any) -> list[Tensor]:
    return [w for group in optimizer.param_groups for w in group["params"]]


def _largest(w: Tensor) -> float:
    return w.grad.abs().max().item()


def _scale(how: str, ratios: list[float], outputs: set[torch.dtype]) -> float:
    if how == "guessed":
        return 65536.0 if torch.float16 in outputs else 1.0
    if how == "one" or not ratios:
        return 1.0
    return 1 / ratios[0] if how == "inverse" else ratios[0]
