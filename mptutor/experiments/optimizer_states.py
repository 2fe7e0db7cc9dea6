"""Adam's two moments in 16 and in 8 bits: what each loses, and when that is fatal.

Adam keeps two numbers for each weight, running averages of its gradient and of the gradient's
square (Kingma and Ba, *Adam*, ICLR 2015, algorithm 1)::

    m = 0.9 m + 0.1 g          v = 0.999 v + 0.001 g²          step = lr m / (sqrt(v) + 1e-8)

In FP32 that is 8 bytes a weight, more than weight and gradient together. Here both are *kept* in
fewer bits from step to step, and the step itself is computed in FP32. What decides is `v`. It is a
square, so its values spread over twice as many binades as the gradients' do, and it stands under a
fraction bar. Where `v` becomes zero while `m` does not, the step is `m` / 1e-8, far too large.

* BF16 has FP32's range, and its 8 bits of precision suffice for a denominator.
* FP16's range does not reach down to `v`: at 0.001 g², a gradient below 0.005 is enough. Its root,
  which Adam needs anyway, fits. Most of the zeros do no harm, for the next step adds its own
  0.001 g² in FP32. It takes one weight whose next gradient is zero, behind a ReLU say.
* 8 bits need a scale, and one for each *block* of 256 values, so that a large one spoils no more
  than its own block. INT8 has equally large steps, and what is below half a step of the block's
  largest value is zero: fatal for `v`, harmless for its root. FP8 E4M3 has 18 binades within a
  block, and that is enough here for `v` itself.

Blocks and a scale for each are what Dettmers et al. use (*8-bit Optimizers via Block-wise
Quantization*, ICLR 2022), with blocks of 2048 and a table of 256 values that lie densely near zero
in the place of INT8 or FP8.

One caution. In BF16 `v` cannot fall slowly: 0.999 v rounds to v. It follows a gradient that grows
and stays where it is when gradients shrink, and steps then are too small. Trainings as short as
this one do not show that. DeepSeek-V3 kept both moments in BF16 with a factor of 0.95, at which `v`
does fall (technical report, 2024, sections 3.3.3 and 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import ImageData, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import accuracy, order_seed, seeded, shorten
from mptutor.models import mlp

BLOCK = 256

Kept = tuple[Tensor, ...]


@dataclass(frozen=True)
class Storage:
    """A way to keep a moment between two steps.

    ``keep`` turns FP32 values into what is kept, a tuple of tensors, and ``read`` back into FP32
    values, in a given shape. With ``root_of_v`` the second moment's root is kept.
    """

    name: str
    keep: Callable[[Tensor], Kept]
    read: Callable[[Kept, torch.Size], Tensor]
    root_of_v: bool = False


def in_dtype(name: str, dtype: torch.dtype, root_of_v: bool = False) -> Storage:
    """Keep every value as a floating-point number of its own."""
    return Storage(name, lambda x: (x.to(dtype),), lambda kept, shape: kept[0].float(), root_of_v)


def in_blocks(
    name: str, dtype: torch.dtype, largest: float, root_of_v: bool = False, block: int = BLOCK
) -> Storage:
    """Keep 8 bits a value and an FP32 scale a block; the block's largest value becomes `largest`.

    The last block is filled up with zeros.
    """

    def keep(x: Tensor) -> Kept:
        rows = F.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
        scale = rows.abs().amax(1, keepdim=True) / largest
        steps = rows / scale.clamp(min=torch.finfo(torch.float32).tiny)
        return (steps.round() if dtype is torch.int8 else steps).to(dtype), scale

    def read(kept: Kept, shape: torch.Size) -> Tensor:
        codes, scale = kept
        return (codes.float() * scale).flatten()[: shape.numel()].view(shape)

    return Storage(name, keep, read, root_of_v)


_INT8_LARGEST, _E4M3_LARGEST = 127.0, 448.0

#: In the order of tables.
STORAGES: dict[str, Storage] = {
    storage.name: storage
    for storage in (
        in_dtype("FP32", torch.float32),
        in_dtype("BF16", torch.bfloat16),
        in_dtype("FP16", torch.float16),
        in_dtype("FP16, root of v", torch.float16, root_of_v=True),
        in_blocks("INT8 blocks", torch.int8, _INT8_LARGEST),
        in_blocks("INT8 blocks, root of v", torch.int8, _INT8_LARGEST, root_of_v=True),
        in_blocks("FP8 blocks", torch.float8_e4m3fn, _E4M3_LARGEST),
    )
}


class Adam:
    """Adam with its moments kept in a `Storage`, and everything else in FP32."""

    def __init__(self, weights: Iterable[nn.Parameter], storage: Storage, lr: float) -> None:
        self._weights, self._storage, self._lr = list(weights), storage, lr
        zeros = [storage.keep(torch.zeros_like(w)) for w in self._weights]
        self._m, self._v = zeros, list(zeros)
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight from its gradient."""
        self._steps += 1
        for i, weight in enumerate(self._weights):
            m, v = self.moments(i)
            m = m.lerp(weight.grad, 0.1)
            v = v.lerp(weight.grad**2, 0.001)
            m_hat = m / (1 - 0.9**self._steps)
            v_hat = v / (1 - 0.999**self._steps)
            weight -= self._lr * m_hat / (v_hat.sqrt() + 1e-8)
            self._m[i] = self._storage.keep(m)
            self._v[i] = self._storage.keep(v.sqrt() if self._storage.root_of_v else v)

    def moments(self, i: int) -> tuple[Tensor, Tensor]:
        """Return both moments of a weight as they were kept, in FP32."""
        shape = self._weights[i].shape
        m, v = (self._storage.read(kept[i], shape) for kept in (self._m, self._v))
        return m, v**2 if self._storage.root_of_v else v

    @property
    def state_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(t.nbytes for moments in (self._m, self._v) for kept in moments for t in kept)

    def share_of_lost_v(self) -> float:
        """Return the share of weights whose `v` is zero while their `m` is not."""
        pairs = [self.moments(i) for i in range(len(self._weights))]
        lost = sum(int(((v == 0) & (m != 0)).sum()) for m, v in pairs)
        return lost / sum(m.numel() for m, _ in pairs)


@dataclass(frozen=True)
class StateRun:
    """A training with the moments kept in one way.

    `loss` is the mean of the last epoch, `share_of_lost_v` the share of weights whose `v` is kept
    as zero after the first step while their `m` is not.
    """

    storage: str
    seed: int
    loss: float
    accuracy: float
    bytes_per_weight: float
    share_of_lost_v: float


@dataclass(frozen=True)
class OptimizerStatesResult(Result):
    """Trainings that differ in how Adam's moments are kept; ``finished`` unless stopped."""

    model: str
    data: str
    device: str
    epochs: int
    runs: tuple[StateRun, ...]
    finished: bool = True

    @property
    def headline(self) -> str:
        """What was trained."""
        return f"{self.model} on {self.data}, Adam, {self.epochs} epochs"

    def of(self, storage: str) -> tuple[StateRun, ...]:
        """Return the runs with one storage, a run a seed."""
        return tuple(run for run in self.runs if run.storage == storage)

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each run."""
        return [
            {
                "moments kept in": run.storage,
                "seed": run.seed,
                "bytes a weight": run.bytes_per_weight,
                "v zero at step 1, %": 100 * run.share_of_lost_v,
                "loss": run.loss,
                "accuracy": run.accuracy,
            }
            for run in self.runs
        ]


def run_optimizer_states(
    *,
    storages: Sequence[Storage] = tuple(STORAGES.values()),
    seeds: Sequence[int] = (0,),
    epochs: int = 3,
    lr: float = 1e-3,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> OptimizerStatesResult:
    """Train an MLP (784, 64, 10) on the shipped images with Adam, batch 128.

    Parameters
    ----------
    storages
        How the moments are kept, from step to step.
    quick
        One epoch on 3,000 images, one seed.
    progress
        Called with a `Stage` before each training; True shows a line in a notebook, see `progress`.
    stop
        Asked before each training; once it says True, or on an interrupt from the keyboard, the
        trainings that have ended are returned.
    """
    device = pick_device() if device is None else torch.device(device)
    data = load(device=device)
    if quick:
        data, seeds, epochs = shorten(data, 3000), seeds[:1], 1
    trainings = [
        (f"{storage.name}, seed {seed}", partial(_train, storage, seed, data, epochs, lr))
        for seed in seeds
        for storage in storages
    ]
    runs, finished = do_in_turn(trainings, progress, stop)
    return OptimizerStatesResult(
        "MLP 784-64-10", data.name, str(device), epochs, runs, finished=finished
    )


def _train(storage: Storage, seed: int, data: ImageData, epochs: int, lr: float) -> StateRun:
    model = seeded(lambda: mlp((784, 64, 10)), seed).to(data.train.images.device)
    optimizer = Adam(model.parameters(), storage, lr)
    lost = None
    for epoch in range(epochs):
        losses = []
        for images, labels in batches(data.train, 128, seed=order_seed(seed, epoch)):
            model.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if lost is None:
                lost = optimizer.share_of_lost_v()
    weights = sum(w.numel() for w in model.parameters())
    return StateRun(
        storage=storage.name,
        seed=seed,
        loss=torch.stack(losses).mean().item(),
        accuracy=accuracy(model, data.test),
        bytes_per_weight=optimizer.state_bytes / weights,
        share_of_lost_v=lost,
    )
