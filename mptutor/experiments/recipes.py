"""Recipes: the ways to train with 16 bits, each a small object that one training loop can follow.

A recipe answers four questions.  In which dtype are the weights kept?  Does autocast choose the
dtype of each op?  Is there an FP32 master copy that the optimizer updates in the model's place?
Is the loss scaled?  Most combinations of answers make no sense and are refused when the recipe is
built, with the reason; the ones that people really use are in `RECIPES`.

The loop follows a recipe through its hooks::

    model = recipe.prepare(model)                       # the weights' dtype
    with recipe.arithmetic(device):                     # on a CPU: compute as a Tensor Core would
        stepper = recipe.stepper(model, make_optimizer)
        for images, labels in batches:
            stepper.zero_grad()
            with recipe.autocast_on(device):            # does nothing without autocast
                loss = F.cross_entropy(model(images), labels)
            stepper.backward(loss)                      # scales the loss, or doesn't
            stepper.step()                              # unscales, checks, updates, copies back

A scaler that is switched off passes everything through, so the loop has no branches.

Under autocast the parameters *are* FP32 and there is nothing to copy; the master copy belongs to
the older recipe in which the whole model is 16-bit (Apex O2, Megatron, DeepSpeed's FP16 engine).
With 16-bit weights `prepare` also casts what goes into the model and gives back FP32, so that the
loss is computed in FP32 by every recipe: what fails here is not the loss function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from mptutor.formats import FloatFormat, get_format
from mptutor.policy import cuda_policy
from mptutor.simulate import simulate_amp
from mptutor.tensorcore import has_units, tensor_core

#: Makes an optimizer for parameters: ``lambda weights: torch.optim.Adam(weights, lr=1e-3)``.
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Recipe:
    """How to train: which dtype where, and what guards against its limits.

    Parameters
    ----------
    name
        What tables and legends call it.
    weights
        Dtype of the model's parameters, buffers and gradients.
    autocast
        Dtype that autocast lowers ops to; None is no autocast.
    master
        Keep an FP32 copy of 16-bit weights and update that.
    scaler
        Scale the loss with `torch.amp.GradScaler`.

    Raises
    ------
    ValueError
        For a combination that makes no sense; the message says why.
    """

    name: str
    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    master: bool = False
    scaler: bool = False

    def __post_init__(self) -> None:
        if reason := self._objection():
            raise ValueError(f"recipe {self.name!r}: {reason}")

    def _objection(self) -> str | None:
        """Return what is wrong with this combination, if anything is."""
        if self.weights not in (torch.float32, *_LOW):
            return f"weights: got {self.weights}, allowed are float32, float16 and bfloat16"
        if self.autocast not in (None, *_LOW):
            return f"autocast: got {self.autocast}, allowed are float16, bfloat16 and None"
        if self.autocast and self.weights in _LOW:
            return (
                f"autocast works on FP32 weights, which it casts to 16 bits where that is safe; "
                f"{self.fmt.name} weights leave it nothing to keep in FP32"
            )
        if self.master and self.weights is torch.float32:
            return "the weights are FP32 already, so they need no FP32 master copy"
        if self.scaler and self.fmt.name != "FP16":
            return (
                f"gradients are {self.fmt.name}, whose range is FP32's: "
                f"there is nothing that a loss scale could save"
            )
        if self.scaler and self.weights is torch.float16 and not self.master:
            return (
                "torch.amp.GradScaler refuses FP16 gradients, because unscaled in FP16 they would "
                "underflow again; keep a master copy"
            )
        return None

    @property
    def fmt(self) -> FloatFormat:
        """The format in which matrix products are computed and gradients flow."""
        return get_format(self.autocast or self.weights)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Give the model's weights their dtype; 16-bit ones get a wrapper that takes FP32."""
        return model if self.weights is torch.float32 else In16Bits(model, self.weights)

    def arithmetic(self, device: torch.device) -> AbstractContextManager:
        """Return the context for the whole training, which makes a CPU compute as a GPU would."""
        if device.type != "cpu":
            return nullcontext()
        if self.autocast is torch.bfloat16 and has_units(torch.bfloat16):
            return cuda_policy()  # CUDA's dtypes, at the CPU's own speed
        if self.autocast:
            return simulate_amp(self.autocast)
        # FP16 even where the CPU has units for it: they do not serve the backward of a convolution.
        if self.weights is torch.float16 or (self.weights in _LOW and not has_units(self.weights)):
            return tensor_core(self.weights)
        return nullcontext()

    def autocast_on(self, device: torch.device) -> AbstractContextManager:
        """Return the context for the forward pass and the loss."""
        return torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)

    def stepper(self, model: nn.Module, make_optimizer: MakeOptimizer) -> Stepper:
        """Return what does the backward pass and the update of a prepared model."""
        return Stepper(model, make_optimizer, master=self.master, scaler=self.scaler)


class In16Bits(nn.Module):
    """A model with 16-bit weights that takes and returns FP32 tensors."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.to(dtype)
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> Any:
        """Cast what comes in to 16 bits, but for token numbers, and what goes out to FP32."""
        cast = (x.to(self.dtype) if x.is_floating_point() else x for x in inputs)
        return tree_map(torch.Tensor.float, self.model(*cast))


class Stepper:
    """The backward pass and the update of one model.

    Attributes
    ----------
    optimizer
        Updates the weights, or their master copy.
    scaler
        A `torch.amp.GradScaler`, which passes everything through when it is disabled.
    steps, updates
        How often `step` was called, and how often the optimizer then ran.
    """

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, *, master: bool, scaler: bool
    ) -> None:
        weights = [w for w in model.parameters() if w.requires_grad]
        self._master = MasterCopy(weights) if master else None
        self.weights = self._master.copies if self._master else weights
        self.optimizer = make_optimizer(self.weights)
        self.scaler = torch.amp.GradScaler(weights[0].device.type, enabled=scaler)
        self.steps = self.updates = 0
        self._model = model
        # The optimizer knows whether it ran; asking the scaler would make a GPU wait.
        self.optimizer.register_step_post_hook(self._count_update)

    @property
    def scale(self) -> float:
        """The loss scale of the next step; 1.0 without a scaler."""
        return self.scaler.get_scale()

    @property
    def skips(self) -> int:
        """How many steps the scaler kept the optimizer from taking."""
        return self.steps - self.updates

    @property
    def held_bytes(self) -> int:
        """What lives from step to step: weights, buffers, master copy, optimizer state."""
        master = self._master.copies if self._master else ()
        state = tree_leaves([*self.optimizer.state.values()])
        held = [*self._model.parameters(), *self._model.buffers(), *master, *state]
        return sum(tensor.nbytes for tensor in held if isinstance(tensor, Tensor))

    def zero_grad(self) -> None:
        """Drop the gradients of the step before."""
        self._model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)  # those of the master copy

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the scaled loss."""
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        """Update the weights, unless the scaler found an infinite or NaN gradient."""
        if self._master:
            self._master.take_gradients()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        if self._master:
            self._master.give_weights()

    def _count_update(self, *_: object) -> None:
        self.updates += 1


class MasterCopy:
    """FP32 copies of 16-bit weights, which the optimizer updates in their place."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self._weights = weights
        self.copies = [nn.Parameter(w.detach().float()) for w in weights]

    def take_gradients(self) -> None:
        """Widen the gradients to FP32; a scale they carry is then taken off in FP32."""
        for weight, copy in zip(self._weights, self.copies, strict=True):
            copy.grad = None if weight.grad is None else weight.grad.float()

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the copies into the model."""
        for weight, copy in zip(self._weights, self.copies, strict=True):
            weight.copy_(copy)


FP32 = Recipe("FP32")
NAIVE_FP16 = Recipe("naive FP16", weights=torch.float16)
FP16_MASTER = Recipe("FP16 + master", weights=torch.float16, master=True)
FP16_MASTER_SCALED = Recipe(
    "FP16 + master + scaler", weights=torch.float16, master=True, scaler=True
)
AMP_FP16 = Recipe("AMP FP16", autocast=torch.float16, scaler=True)
AMP_FP16_UNSCALED = Recipe("AMP FP16 without scaler", autocast=torch.float16)
AMP_BF16 = Recipe("AMP BF16", autocast=torch.bfloat16)
PURE_BF16 = Recipe("pure BF16", weights=torch.bfloat16)
BF16_MASTER = Recipe("BF16 + master", weights=torch.bfloat16, master=True)

#: All of them by name, in the order of tables.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        FP32,
        AMP_FP16,
        AMP_BF16,
        AMP_FP16_UNSCALED,
        FP16_MASTER_SCALED,
        FP16_MASTER,
        BF16_MASTER,
        NAIVE_FP16,
        PURE_BF16,
    )
}
