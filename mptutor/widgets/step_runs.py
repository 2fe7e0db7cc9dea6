"""Two training steps of a small network, run call by call, with everything written down.

Each call of a `Loop` is executed as it stands, by Python, on a real network with a real optimizer
and `torch.amp.GradScaler`, while `mptutor.simulate_amp` lets the CPU compute as a GPU does under
AMP. After each call a `Stop` records what there is to see: the loss, the gradients, the scale, how
far the weights have moved. What raises ends the run, and its message is torch's own.

Two steps, since some mistakes show in the second only. The first gets the batch that the learner
chose; the second gets an ordinary one after a batch that overflows, else the same again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.models import mlp
from mptutor.simulate import simulate_amp
from mptutor.widgets.step_loops import LOOPS, PLAIN_STEP, Call, Loop

#: The batches on offer, and what they are.
BATCHES = {
    "healthy": "ordinary examples",
    "overflowing": "one example a hundred times too large, as by a broken sensor",
    "tiny": "examples that the network is already sure of, so that next to no gradient is left",
}

SCALES = (1.0, 2.0**10, 2.0**16, 2.0**20)
STEPS = 2
LEARNING_RATE = 0.1
BATCH_SIZE, FEATURES, HIDDEN, CLASSES = 32, 16, 32, 4

#: A gradient per example between these is too small for FP16, and large enough once scaled.
_SURE = (3e-8, 3e-7)


# -- what is recorded ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradients:
    """The gradients of all parameters: norm, smallest, median and largest size, shares in 0..1.

    ``one`` is the gradient of the weight that is followed. ``low`` and ``median`` are of those
    that are neither 0 nor infinite nor NaN, and 0 if there are none.
    """

    dtype: str
    norm: float
    low: float
    median: float
    largest: float
    zero: float
    nonfinite: float
    one: float


@dataclass(frozen=True)
class Losses:
    """The forward pass: the largest output, the loss, and the loss times the scale."""

    output_dtype: str | None = None
    output_max: float | None = None
    loss_dtype: str | None = None
    loss: float | None = None
    scaled: float | None = None


@dataclass(frozen=True)
class Scaling:
    """The scaler: its scale, its count of good steps, and whether it has found inf or NaN."""

    scale: float
    growth_tracker: int
    found_inf: bool | None


@dataclass(frozen=True)
class Weights:
    """One weight that is followed, and how far all have moved since the step began."""

    one: float
    moved: float


@dataclass(frozen=True)
class Stop:
    """What there is to see after a call.

    ``step`` is 0 or 1, ``line`` the place of the call in its loop. ``event`` is "ran" or "raised";
    ``scaler.step`` has two stops, "checked" and then "stepped" or "skipped".
    """

    step: int
    line: int
    event: str
    losses: Losses
    gradients: Gradients | None
    scaling: Scaling
    weights: Weights


@dataclass(frozen=True)
class Run:
    """All stops of a loop in one situation, and the error that ended it, if one did."""

    stops: tuple[Stop, ...]
    error: str = ""


# -- the network and its batches -------------------------------------------------------------------


def make_model() -> nn.Sequential:
    """Return the network of every run, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((FEATURES, HIDDEN, CLASSES))


@cache
def _batches() -> dict[str, tuple[tuple[Tensor, Tensor], ...]]:
    """Return inputs, 32 x 16, and labels, 32, of both steps, by the name of the situation."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.randn(BATCH_SIZE, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (BATCH_SIZE,), generator=generator)
    broken = torch.cat([100 * x[:1], x[1:]])
    many = 30 * torch.randn(100_000, FEATURES, generator=generator)
    with torch.no_grad():
        output = make_model()(many)
    doubt = F.cross_entropy(output.double(), output.argmax(1), reduction="none")
    sure = many[(doubt > _SURE[0]) & (doubt < _SURE[1])][:BATCH_SIZE]
    with torch.no_grad():
        labels = make_model()(sure).argmax(1)
    return {
        "healthy": ((x, y),) * STEPS,
        "overflowing": ((broken, y), (x, y)),
        "tiny": ((sure, labels),) * STEPS,
    }


# -- running ---------------------------------------------------------------------------------------


def run_loop(loop: Loop, batch: str, scale: float) -> Run:
    """Run two steps of ``loop`` from the same weights, starting with ``scale``."""
    with simulate_amp():
        return _Recorder(batch, scale).run(loop)


@cache
def run_all() -> dict[tuple[str, str, float], Run]:
    """Run every loop in every situation; the keys are (loop, batch, scale)."""
    with simulate_amp():
        return {
            (loop.name, batch, scale): _Recorder(batch, scale).run(loop)
            for loop in LOOPS.values()
            for batch in BATCHES
            for scale in SCALES
        }


class _Recorder:
    """A network in training, and what a call of the loop can name."""

    def __init__(self, batch: str, scale: float) -> None:
        self.model = make_model()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=LEARNING_RATE)
        self.optimizer.register_step_pre_hook(lambda *_: self.note_the_step())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.batches = _batches()[batch]
        self.names: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "loss_fn": F.cross_entropy,
            "clip_grad_norm_": nn.utils.clip_grad_norm_,
        }

    def run(self, loop: Loop) -> Run:
        stops: list[Stop] = []
        for step, (x, y) in enumerate(self.batches):
            for name in ("output", "loss", "scaled"):
                self.names.pop(name, None)
            self.names.update(x=x, y=y)
            self.start = self.all_weights()
            for self.place in ((step, line) for line in range(len(loop.calls))):
                try:
                    stops.extend(self.execute(loop.calls[self.place[1]]))
                except Exception as error:  # whatever torch raises is to be shown
                    stops.append(self.stop("raised"))
                    return Run(tuple(stops), f"{type(error).__name__}: {error}")
        return Run(tuple(stops))

    def execute(self, call: Call) -> list[Stop]:
        self.before_step: Stop | None = None
        with torch.autocast("cpu", torch.float16, enabled=call.autocast):
            # The line that is shown is the line that runs.
            exec(call.code, self.names)
        if call.name != "step":
            return [self.stop("ran")]
        if call.code == PLAIN_STEP.code:
            return [self.stop("stepped")]
        if self.before_step:
            return [self.before_step, self.stop("stepped")]
        return [self.stop("checked"), self.stop("skipped")]

    def note_the_step(self) -> None:
        """Remember how things are when ``scaler.step`` lets the optimizer run."""
        self.before_step = self.stop("checked")

    # What there is to see now.

    def stop(self, event: str) -> Stop:
        seen = self.losses(), self.gradients(), self.scaling(), self.weights()
        return Stop(*self.place, event, *seen)

    def losses(self) -> Losses:
        output, loss, scaled = (self.names.get(name) for name in ("output", "loss", "scaled"))
        return Losses(
            None if output is None else _dtype_name(output),
            None if output is None else output.detach().abs().max().item(),
            None if loss is None else _dtype_name(loss),
            None if loss is None else loss.item(),
            None if scaled is None else scaled.item(),
        )

    def gradients(self) -> Gradients | None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if not grads:
            return None
        sizes = nn.utils.parameters_to_vector(grads).double().abs()
        usable = sizes[sizes.isfinite() & (sizes > 0)].sort().values
        return Gradients(
            dtype=_dtype_name(grads[0]),
            norm=sizes.square().sum().sqrt().item(),
            low=usable[len(usable) // 10].item() if len(usable) else 0.0,
            median=usable[len(usable) // 2].item() if len(usable) else 0.0,
            largest=sizes.max().item(),
            zero=(sizes == 0).double().mean().item(),
            nonfinite=(~sizes.isfinite()).double().mean().item(),
            one=self.model.linear2.weight.grad[0, 0].item(),
        )

    def scaling(self) -> Scaling:
        found = self.scaler._found_inf_per_device(self.optimizer).values()
        return Scaling(
            scale=self.scaler.get_scale(),
            growth_tracker=self.scaler.state_dict()["_growth_tracker"],
            found_inf=any(flag.item() for flag in found) if found else None,
        )

    def weights(self) -> Weights:
        moved = (self.all_weights() - self.start).norm().item()
        return Weights(self.model.linear2.weight[0, 0].item(), moved)

    def all_weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters).detach().double()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
