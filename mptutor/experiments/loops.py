"""The loops of lesson 10, each right and wrong: one optimizer step of a real training loop.

A real loop does more than scale, backward, step, update. It clips, accumulates, has a second loss
or a second optimizer, penalizes gradients. Between ``scaler.scale(loss).backward()`` and
``scaler.step(optimizer)`` all gradients are *scale* times too large, and every one of these
patterns has a place where that matters. Here each is written twice, as it should be and as it is
often found.

The loops are plain functions of a `Session` and take one optimizer step each, to be read side by
side: ``print(PATTERNS["clipping"])``. `mptutor.experiments.loop_patterns` trains with them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import ndiff

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.devices import pick_device
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.tasks import seeded
from mptutor.models import mlp

MAX_NORM = 1.0
MICRO_BATCHES = 4
PENALTY_WEIGHT = 0.01


@dataclass
class Session:
    """What a loop works with: a model whose last layer is its head, optimizers, a scaler."""

    model: nn.Sequential
    device: torch.device
    make_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    optimizer: torch.optim.Optimizer = field(init=False)
    of_body: torch.optim.Optimizer = field(init=False)
    of_head: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = self.make_optimizer(list(self.model.parameters()))
        self.of_body = self.make_optimizer(list(self.model[:-1].parameters()))
        self.of_head = self.make_optimizer(list(self.model[-1].parameters()))

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The weights without the biases, which a gradient penalty is taken of."""
        return [p for p in self.model.parameters() if p.dim() > 1]

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, computed under autocast."""
        with AMP_FP16.autocast_on(self.device):
            return F.cross_entropy(self.model(images), labels)

    def smoothness_loss(self, images: Tensor) -> Tensor:
        """Return a second loss: how much the logits change when the images are mirrored."""
        with AMP_FP16.autocast_on(self.device):
            difference = self.model(images) - self.model(images.flip(-1))
            return difference.float().square().mean()


_OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
}


def make_session(
    optimizer: str = "sgd",
    *,
    seed: int = 0,
    init_scale: float = 2.0**16,
    growth_interval: int = 2000,
    device: torch.device | str | None = None,
) -> Session:
    """Make a session with the course's MLP, ready to train.

    Parameters
    ----------
    optimizer
        ``"sgd"`` (0.1) or ``"adam"`` (1e-3).
    seed
        Of the weights.
    init_scale, growth_interval
        Of the loss scaler.
    device
        Where; the default is `pick_device()`.
    """
    if optimizer not in _OPTIMIZERS:
        raise ValueError(f"optimizer: got {optimizer!r}, allowed are {', '.join(_OPTIMIZERS)}")
    device = pick_device() if device is None else torch.device(device)
    scaler = torch.amp.GradScaler(
        device.type, init_scale=init_scale, growth_interval=growth_interval
    )
    model = seeded(mlp, seed).to(device)
    return Session(model, device, _OPTIMIZERS[optimizer], scaler)


#: One optimizer step on a batch; returns the loss to be watched.
Step = Callable[[Session, Tensor, Tensor], Tensor]


def plain_step(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Take a step and do nothing else."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


# -- clipping ------------------------------------------------------------------------------------


def clip_unscaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Unscale first, so that the limit applies to the gradients themselves."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    s.scaler.unscale_(s.optimizer)
    nn.utils.clip_grad_norm_(s.model.parameters(), MAX_NORM)
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def clip_scaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Clip gradients that are still scaled: the limit is thousands of times too strict."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(s.model.parameters(), MAX_NORM)
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


# -- accumulation --------------------------------------------------------------------------------


def accumulate_mean(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Add up the gradients of micro-batches, each loss divided by their number."""
    s.optimizer.zero_grad()
    for some_images, some_labels in micro_batches(images, labels):
        loss = s.loss(some_images, some_labels)
        s.scaler.scale(loss / MICRO_BATCHES).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def accumulate_sum(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Forget to divide: the learning rate is multiplied by the number of micro-batches."""
    s.optimizer.zero_grad()
    for some_images, some_labels in micro_batches(images, labels):
        loss = s.loss(some_images, some_labels)
        s.scaler.scale(loss).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def micro_batches(images: Tensor, labels: Tensor) -> zip[tuple[Tensor, Tensor]]:
    """Cut a batch into `MICRO_BATCHES` equal parts."""
    return zip(images.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True)


# -- two losses ----------------------------------------------------------------------------------


def both_losses_scaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Scale every loss that is propagated back before the step."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    s.scaler.scale(s.smoothness_loss(images)).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def main_loss_unscaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Scale the second loss alone: divided by the scale, the first one is gone."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    loss.backward()
    s.scaler.scale(s.smoothness_loss(images)).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


# -- two optimizers ------------------------------------------------------------------------------


def both_optimizers_through_scaler(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Step every optimizer through the scaler, and update it once."""
    s.model.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    s.scaler.step(s.of_body)
    s.scaler.step(s.of_head)
    s.scaler.update()
    return loss


def second_optimizer_directly(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Step the second optimizer directly: with scaled gradients, and with infinite ones."""
    s.model.zero_grad()
    loss = s.loss(images, labels)
    s.scaler.scale(loss).backward()
    s.scaler.step(s.of_body)
    s.of_head.step()
    s.scaler.update()
    return loss


# -- a gradient penalty --------------------------------------------------------------------------


def penalize_unscaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Unscale the gradients, out of place, before they become part of the loss."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    grads = torch.autograd.grad(s.scaler.scale(loss), s.matrices, create_graph=True)
    grads = [grad / s.scaler.get_scale() for grad in grads]
    penalty = sum(grad.square().sum() for grad in grads)
    s.scaler.scale(loss + PENALTY_WEIGHT * penalty).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def penalize_scaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Penalize scaled gradients: the penalty is the scale squared times too large."""
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    grads = torch.autograd.grad(s.scaler.scale(loss), s.matrices, create_graph=True)
    penalty = sum(grad.square().sum() for grad in grads)
    s.scaler.scale(loss + PENALTY_WEIGHT * penalty).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


# -- the pairs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """A pattern, right and wrong.

    As text it is the right loop, with the lines that the wrong one has instead marked: ``+`` for
    what is right, ``-`` for what is wrong.
    """

    name: str
    right: Step
    wrong: Step

    def __str__(self) -> str:
        right, wrong = _lines_of(self.right), _lines_of(self.wrong)
        return "\n".join(line for line in ndiff(wrong, right) if not line.startswith("?"))


def _lines_of(step: Step) -> list[str]:
    """Return what a step does, line by line, without its name and its docstring."""
    (function,) = ast.parse(inspect.getsource(step)).body
    return [line for node in function.body[1:] for line in ast.unparse(node).splitlines()]


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("clipping", clip_unscaled, clip_scaled),
        Pattern("accumulation", accumulate_mean, accumulate_sum),
        Pattern("two losses", both_losses_scaled, main_loss_unscaled),
        Pattern("two optimizers", both_optimizers_through_scaler, second_optimizer_directly),
        Pattern("gradient penalty", penalize_unscaled, penalize_scaled),
    )
}
