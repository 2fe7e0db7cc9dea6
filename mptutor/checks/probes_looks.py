"""A probe for instruments: it lets the learner's function look at one training step.

The step comes in several makes, by name: which dtypes, which scale, what a framework would put
around the model. All of them are plain torch, so no framework is needed. Like every probe it knows
nothing of right and wrong; see `mptutor.checks.probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Make:
    """How a training step is made.

    Attributes
    ----------
    autocast
        Dtype of autocast around the forward pass.
    weights
        Dtype that the whole model is turned to.
    scaled
        Whether the loss is scaled.
    cast_back
        Whether the model gives FP32 back, whatever it computes in.
    fp32_head
        Whether the last layer is taken out of autocast.
    frozen_base
        Whether the first layer is in BF16 and not trained.
    drops_gradients
        Whether the step ends with the gradients dropped.
    """

    autocast: torch.dtype | None = None
    weights: torch.dtype = torch.float32
    scaled: bool = False
    cast_back: bool = False
    fp32_head: bool = False
    frozen_base: bool = False
    drops_gradients: bool = False


MAKES: dict[str, Make] = {
    "plain": Make(),
    "FP16, scaled": Make(autocast=torch.float16, scaled=True),
    "FP16, scaled, cast back": Make(autocast=torch.float16, scaled=True, cast_back=True),
    "FP16, no scaler": Make(autocast=torch.float16, cast_back=True, drops_gradients=True),
    "BF16, cast back": Make(autocast=torch.bfloat16, cast_back=True),
    "BF16, drops gradients": Make(autocast=torch.bfloat16, drops_gradients=True),
    "BF16 weights, cast back": Make(weights=torch.bfloat16, cast_back=True),
    "FP16 weights": Make(weights=torch.float16),
    "FP32 head": Make(autocast=torch.float16, scaled=True, fp32_head=True),
    "frozen base": Make(frozen_base=True),
}


class Net(nn.Module):
    """Linear, norm, ReLU, linear: 12 -> width -> 3."""

    def __init__(self, make: Make, width: int) -> None:
        super().__init__()
        self.make = make
        self.base = nn.Sequential(nn.Linear(12, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 3)
        self.back = CastBack() if make.cast_back else nn.Identity()
        self.to(make.weights)
        if make.frozen_base:
            self.base[0].to(torch.bfloat16).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Map b x 12 to b x 3."""
        with torch.autocast("cpu", self.make.autocast, enabled=self.make.autocast is not None):
            hidden = self.base[0](x.to(self.base[0].weight.dtype if self._is_low else x.dtype))
            hidden = self.base[1](hidden.to(self.base[1].weight.dtype)).relu()
            with torch.autocast("cpu", self.make.autocast, enabled=self._head_autocasts):
                logits = self.head(hidden.float() if self.make.fp32_head else hidden)
        return self.back(logits)

    @property
    def _is_low(self) -> bool:
        return self.make.frozen_base or self.make.weights != torch.float32

    @property
    def _head_autocasts(self) -> bool:
        return self.make.autocast is not None and not self.make.fp32_head


class CastBack(nn.Module):
    """What several frameworks put at the end of a model."""

    def forward(self, x: Tensor) -> Tensor:
        """Return FP32."""
        return x.float()


def take_a_look(written: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Let the learner's function look at a step, and tell what it said and what it left behind.

    ``inputs`` are the name of a make, the loss scale, and the seed of weights and data.
    """
    name, scale, seed = inputs
    make = MAKES[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model, x = Net(make, width=16), torch.randn(8, 12)
    y = torch.arange(8) % 3
    trained = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=make.scaled)
    taken: list[bool] = []

    def step() -> None:
        taken.append(True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if make.drops_gradients:
            optimizer.zero_grad()

    said = written(model, optimizer, step)
    if not isinstance(said, dict):
        return said
    left = {
        "steps taken": ("none", "one", "several")[min(len(taken), 2)],
        "hooks left": "some" if _hooks_on(model, optimizer) else "none",
    }
    return {key: _in_order(value) for key, value in said.items()} | left


def _in_order(value: Any) -> Any:
    """Write down a collection of dtypes as a sorted list of names, each once."""
    return sorted(set(map(str, value))) if isinstance(value, (set, list, tuple)) else value


def _hooks_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    on_modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    on_weights = sum(
        len(w._post_accumulate_grad_hooks or ()) + len(w._backward_hooks or ())
        for w in model.parameters()
    )
    on_optimizer = len(optimizer._optimizer_step_pre_hooks)
    return on_modules + on_weights + on_optimizer + len(optimizer._optimizer_step_post_hooks)
