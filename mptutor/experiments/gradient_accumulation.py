"""Gradients of many micro-batches added up, in FP32 and in 16 bits.

A batch that does not fit is cut into micro-batches, and `backward` adds each one's gradients to
those that are there: to ``weight.grad``, in the dtype of the weights. With 16-bit weights it is
lesson 02's running sum. The larger the sum has grown, the more of each term it rounds away, and a
term below half an ulp of the sum is lost whole.

What comes of it here: after 256 micro-batches BF16 is off by between one and two per cent, a sixth
of the last gradients changes nothing, and both shares rise with the count. FP16, with three bits
more, is off by a tenth of that.

Who accumulates in FP32 does it for little: one buffer of the weights' size. Autocast has it for
nothing, since its weights and gradients are FP32. PyTorch's FSDP2 asks for it with
``MixedPrecisionPolicy(reduce_dtype=torch.float32)`` and accumulates in that dtype while the ranks
are not synchronized. Llama 3 accumulated in FP32 (*The Llama 3 Herd of Models*, 2024, section
3.3.2), DeepSeek-V3 too (technical report, 2024, section 3.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import Split, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress, Stage, shown
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import seeded
from mptutor.formats import BF16, FP16, FP32, FloatFormat, get_format
from mptutor.models import mlp


@dataclass(frozen=True)
class Accumulated:
    """A sum of gradients after some micro-batches.

    `relative_error` is the norm of its difference to the FP64 sum of the same FP32 gradients over
    the norm of that; `share_lost` is the share of nonzero gradients of the last micro-batch that
    changed nothing.
    """

    fmt: str
    micro_batches: int
    relative_error: float
    share_lost: float


@dataclass(frozen=True)
class GradientAccumulationResult(Result):
    """Sums of gradients in each format; ``finished`` unless it was stopped."""

    model: str
    data: str
    device: str
    micro_batch_size: int
    sums: tuple[Accumulated, ...]
    finished: bool = True

    @property
    def headline(self) -> str:
        """What was added up."""
        return f"{self.model} on {self.data}, micro-batches of {self.micro_batch_size}"

    def of(self, fmt: FloatFormat | str, micro_batches: int) -> Accumulated:
        """Return one sum."""
        name = get_format(fmt).name
        return next(s for s in self.sums if (s.fmt, s.micro_batches) == (name, micro_batches))

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each number of micro-batches, two columns for each format."""
        rows: dict[int, dict[str, Cell]] = {}
        for s in self.sums:
            row = rows.setdefault(s.micro_batches, {"micro-batches": s.micro_batches})
            row[f"{s.fmt} error %"] = 100 * s.relative_error
            row[f"{s.fmt} lost %"] = 100 * s.share_lost
        return list(rows.values())


def run_gradient_accumulation(
    micro_batches: int = 256,
    *,
    micro_batch_size: int = 8,
    formats: Sequence[FloatFormat | str] = (FP32, FP16, BF16),
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> GradientAccumulationResult:
    """Add up the gradients of an MLP (784, 64, 10), computed in FP32, in each format.

    Parameters
    ----------
    micro_batches
        How many; the sums are looked at after 1, 4, 16 … of them, and after the last.
    quick
        At most 64 micro-batches.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Told a `Stage` after each micro-batch; asked before each. Once `stop` says True, or on an
        interrupt from the keyboard, what has been looked at is returned.
    """
    if micro_batches < 1 or micro_batch_size < 1:
        raise ValueError(
            f"micro_batches and micro_batch_size: allowed is 1 and more, "
            f"got {micro_batches} and {micro_batch_size}"
        )
    if quick:
        micro_batches = min(micro_batches, 64)
    device = pick_device() if device is None else torch.device(device)
    data = load(device=device)
    model = seeded(lambda: mlp((784, 64, 10)), seed).to(device)
    epochs = _endless(data.train, micro_batch_size, seed)
    adding = _add_up(model, epochs, [get_format(fmt) for fmt in formats], micro_batches)
    sums: list[Accumulated] = []
    done = 0
    with suppress(KeyboardInterrupt), shown(progress) as tell:
        while done < micro_batches and not (stop and stop()):
            sums += next(adding)
            done += 1
            tell(Stage(f"{done} micro-batches", done / micro_batches))
    return GradientAccumulationResult(
        "MLP 784-64-10",
        data.name,
        str(device),
        micro_batch_size,
        tuple(sums),
        finished=done == micro_batches,
    )


def _add_up(
    model: nn.Module,
    epochs: Iterator[tuple[Tensor, Tensor]],
    formats: Sequence[FloatFormat],
    micro_batches: int,
) -> Iterator[list[Accumulated]]:
    """Add the gradients of one micro-batch after another; yield the sums where they are looked at.

    That is after 1, 4, 16 … micro-batches and after the last; in between the list is empty.
    """
    sums: dict[str, Tensor] = {}
    exact: Tensor | float = 0.0
    for count in range(1, micro_batches + 1):
        images, labels = next(epochs)
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        grad = torch.cat([w.grad.flatten() for w in model.parameters()])
        exact = exact + grad.double()
        is_looked_at = count == micro_batches or (
            count.bit_count() == 1 and count.bit_length() % 2 == 1
        )
        looked = []
        for fmt in formats:
            term = grad.to(fmt.torch_dtype)
            before = sums.get(fmt.name, torch.zeros_like(term))
            sums[fmt.name] = before + term
            if is_looked_at:
                looked.append(_looked_at(fmt, count, before, sums[fmt.name], term, exact))
        yield looked


def _endless(split: Split, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches(split, size, seed=seed, drop_last=True)
        seed += 1


def _looked_at(
    fmt: FloatFormat, count: int, before: Tensor, after: Tensor, term: Tensor, exact: Tensor
) -> Accumulated:
    error = (after.double() - exact).norm() / exact.norm()
    counts = term != 0
    lost = ((after == before) & counts).sum() / counts.sum()
    return Accumulated(fmt.name, count, error.item(), lost.item())
