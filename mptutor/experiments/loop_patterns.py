"""Real training loops, right and wrong: what each mistake costs.

A real loop does more than scale, backward, step, update. It clips, accumulates, has a second loss
or a second optimizer, penalizes gradients. Between ``scaler.scale(loss).backward()`` and
``scaler.step(optimizer)`` all gradients are *scale* times too large, and every one of these
patterns has a place where that matters. Here each is written twice, as it should be and as it is
often found, and both train an MLP on the same images. (Not the CNN: the second derivative of batch
norm counts its elements in the dtype of its input, and from 65520 on FP16 counts to infinity.)

None of the wrong loops raises an error or warns. How much each costs depends on its setting, and
the setting is said with it: clipping scaled gradients stops SGD dead and Adam hardly notices, for
it divides by the size of the gradients anyway.

The loops are plain functions of a `Session` and take one optimizer step each, to be read side by
side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import ImageData, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import accuracy, order_seed, seeded
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

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, computed under autocast."""
        with AMP_FP16.autocast_on(self.device):
            return F.cross_entropy(self.model(images), labels)

    def smoothness_loss(self, images: Tensor) -> Tensor:
        """Return a second loss: how much the logits change when the images are mirrored."""
        with AMP_FP16.autocast_on(self.device):
            difference = self.model(images) - self.model(images.flip(-1))
            return difference.float().square().mean()


#: One optimizer step on a batch; returns the loss to be watched.
Step = Callable[[Session, Tensor, Tensor], Tensor]

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
    for some_images, some_labels in _micro_batches(images, labels):
        loss = s.loss(some_images, some_labels)
        s.scaler.scale(loss / MICRO_BATCHES).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def accumulate_sum(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Forget to divide: the learning rate is multiplied by the number of micro-batches."""
    s.optimizer.zero_grad()
    for some_images, some_labels in _micro_batches(images, labels):
        loss = s.loss(some_images, some_labels)
        s.scaler.scale(loss).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


def _micro_batches(images: Tensor, labels: Tensor) -> zip[tuple[Tensor, Tensor]]:
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
    """Unscale the gradients out of place before they become part of the loss."""
    return _penalized_step(s, images, labels, unscale=1 / s.scaler.get_scale())


def penalize_scaled(s: Session, images: Tensor, labels: Tensor) -> Tensor:
    """Penalize scaled gradients: the penalty is the scale squared times too large."""
    return _penalized_step(s, images, labels, unscale=1.0)


def _penalized_step(s: Session, images: Tensor, labels: Tensor, unscale: float) -> Tensor:
    s.optimizer.zero_grad()
    loss = s.loss(images, labels)
    weights = [p for p in s.model.parameters() if p.dim() > 1]
    scaled = torch.autograd.grad(s.scaler.scale(loss), weights, create_graph=True)
    penalty = sum((grad * unscale).square().sum() for grad in scaled)
    s.scaler.scale(loss + PENALTY_WEIGHT * penalty).backward()
    s.scaler.step(s.optimizer)
    s.scaler.update()
    return loss


# -- what is run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """A pattern, right and wrong."""

    name: str
    right: Step
    wrong: Step


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


@dataclass(frozen=True)
class LoopRun:
    """One training by one loop: the loss of every step, and how many were skipped."""

    pattern: str
    variant: str
    loop: str
    seed: int
    losses: tuple[float, ...]
    accuracy: float
    final_scale: float
    skips: int

    @property
    def last_loss(self) -> float:
        """Mean over the last quarter of the steps."""
        return fmean(self.losses[-max(1, len(self.losses) // 4) :])


@dataclass(frozen=True)
class LoopPatternsResult(Result):
    """Every loop on the same task. ``optimizer`` is ``"sgd"`` or ``"adam"``."""

    optimizer: str
    device: str
    epochs: int
    runs: tuple[LoopRun, ...]

    def of(self, pattern: str, variant: str) -> tuple[LoopRun, ...]:
        """Return the runs, one for each seed, of the ``"right"`` or ``"wrong"`` variant."""
        runs = tuple(r for r in self.runs if (r.pattern, r.variant) == (pattern, variant))
        if not runs:
            have = sorted({(r.pattern, r.variant) for r in self.runs})
            raise ValueError(f"pattern, variant: got {(pattern, variant)}, this result has {have}")
        return runs

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every loop."""
        pairs = dict.fromkeys((run.pattern, run.variant) for run in self.runs)
        return [self._row(pattern, variant) for pattern, variant in pairs]

    def _row(self, pattern: str, variant: str) -> dict[str, Cell]:
        runs = self.of(pattern, variant)
        return {
            "pattern": pattern,
            "": variant,
            "loop": runs[0].loop,
            "last loss": _mean_and_spread([run.last_loss for run in runs]),
            "accuracy": _mean_and_spread([run.accuracy for run in runs]),
            "skips": sum(run.skips for run in runs),
            "final scale": runs[-1].final_scale,
        }


def _mean_and_spread(values: list[float]) -> str:
    if not all(map(math.isfinite, values)):
        return "NaN"
    spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}"


_OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
}


def run_loop_patterns(
    names: Sequence[str] = tuple(PATTERNS),
    *,
    optimizer: str = "sgd",
    epochs: int = 2,
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    device: torch.device | str | None = None,
) -> LoopPatternsResult:
    """Train the MLP by the right and the wrong loop of each pattern, in AMP FP16.

    Parameters
    ----------
    names
        Some of `PATTERNS`.
    optimizer
        ``"sgd"`` (0.1) or ``"adam"`` (1e-3).
    epochs, seeds
        How long and how often.
    quick
        One seed, one epoch.
    device
        Where; the default is `pick_device()`.
    """
    if unknown := [name for name in names if name not in PATTERNS]:
        raise ValueError(f"names: got {unknown}, allowed are {', '.join(PATTERNS)}")
    if optimizer not in _OPTIMIZERS:
        raise ValueError(f"optimizer: got {optimizer!r}, allowed are {', '.join(_OPTIMIZERS)}")
    device = pick_device() if device is None else torch.device(device)
    data = load("fashion-mnist-5k", device=device)
    if quick:
        seeds, epochs = seeds[:1], 1
    runs = tuple(
        _train(PATTERNS[name], variant, optimizer, data, epochs, seed, device)
        for seed in seeds
        for name in names
        for variant in ("right", "wrong")
    )
    return LoopPatternsResult(optimizer, str(device), epochs, runs)


def _train(
    pattern: Pattern,
    variant: str,
    optimizer: str,
    data: ImageData,
    epochs: int,
    seed: int,
    device: torch.device,
) -> LoopRun:
    model = seeded(mlp, seed).to(device)
    scaler = torch.amp.GradScaler(device.type)
    session = Session(model, device, _OPTIMIZERS[optimizer], scaler)
    step: Step = getattr(pattern, variant)
    losses, skips = [], 0
    with AMP_FP16.arithmetic(device):
        for epoch in range(epochs):
            for images, labels in batches(data.train, 128, seed=order_seed(seed, epoch)):
                before = scaler.get_scale()
                losses.append(step(session, images, labels).detach())
                skips += scaler.get_scale() < before
    return LoopRun(
        pattern.name,
        variant,
        step.__name__,
        seed,
        tuple(torch.stack(losses).tolist()),
        accuracy(model, data.test),
        scaler.get_scale(),
        skips,
    )
