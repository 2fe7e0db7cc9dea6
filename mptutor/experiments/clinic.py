"""The patients of the failure clinic: small trainings that learn within a second.

Each is a model, its optimizer, a loss scaler and a list of batches, seeded, on the CPU. None of
them is ill. What is done to them is written in the lesson and in the exercise, where it can be
read; here is only what a loop needs to run at all. FP16 has the same range on a CPU as on a GPU, so
what overflows or vanishes there does so here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 32, 3

Batch = tuple[Tensor, Tensor]


@dataclass
class Patient:
    """What a training loop works with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    batches: list[Batch]

    def weights_hash(self) -> str:
        """Return eight digits that differ as soon as one bit of one weight does."""
        digest = hashlib.sha256()
        for weight in self.model.parameters():
            digest.update(bytes(weight.detach().reshape(-1).view(torch.uint8).tolist()))
        return digest.hexdigest()[:8]


def classifier(width: int = 64) -> nn.Sequential:
    """Build 32 -> width -> width -> 3."""
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def attention() -> nn.ModuleDict:
    """Build the two layers around one head of attention, with queries and keys grown large.

    They do grow in long trainings: attention that has made up its mind makes its logits larger
    still. Here they are ninety times what they start with.
    """
    qkv, head = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        qkv.weight[: 2 * FEATURES] *= 90
    return nn.ModuleDict({"qkv": qkv, "head": head})


def detector() -> nn.Sequential:
    """Build 32 -> 64 -> 1: one logit for yes or no."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))


def reader() -> nn.ModuleDict:
    """Build two layers that read a sequence position by position: 32 -> 64 -> 3."""
    return nn.ModuleDict({"widen": nn.Linear(FEATURES, 64), "head": nn.Linear(64, CLASSES)})


def patient(
    build: Callable[[], nn.Module] = classifier,
    *,
    steps: int = 20,
    batch: int = 64,
    lr: float = 0.5,
    adam: bool = False,
    init_scale: float = 2.0**16,
    growth_interval: int = 2000,
    size: float = 1.0,
    seed: int = 0,
) -> Patient:
    """Make a training that is in order.

    Parameters
    ----------
    build
        `classifier`, `attention` or `reader` (batches of sequences, 16 long), or `detector` (labels
        0.0 and 1.0).
    steps, batch
        How many batches there are, and their size.
    lr, adam
        Learning rate of SGD, or of Adam.
    init_scale, growth_interval
        Of the loss scaler.
    size
        Standard deviation of the features. Large ones are an input somebody forgot to normalize.
    seed
        Of weights and data.
    """
    torch.manual_seed(seed)
    model = build()
    kind = torch.optim.Adam if adam else torch.optim.SGD
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    draw = torch.Generator().manual_seed(seed)
    shape = (batch, 16, FEATURES) if build in (attention, reader) else (batch, FEATURES)
    batches = []
    for _ in range(steps):
        x = torch.randn(shape, generator=draw)
        y = _labels(x)
        if build is detector:
            y = (y > 0).float().unsqueeze(1)
        batches.append((size * x, y))
    return Patient(model, kind(model.parameters(), lr), scaler, batches)


def _labels(x: Tensor) -> Tensor:
    """Return a class that can be learned: the signs of two sums of features."""
    x = x.mean(1) if x.dim() == 3 else x
    return (x[:, :4].sum(1) > 0).long() + (x[:, 4:8].sum(1) > 0).long()


def tell(losses: Sequence[float], every: int = 1) -> str:
    """Write down losses in one line, to be looked at with bare eyes."""
    return "  ".join(f"{loss:.3g}" for loss in losses[::every])


def powers(scales: Sequence[float]) -> str:
    """Write down scales that are powers of two, each with how often it came: ``2^16 x3  2^15``."""
    runs = [(scale, len(list(run))) for scale, run in groupby(scales)]
    return "  ".join(f"2^{math.log2(s):g}" + (f" x{n}" if n > 1 else "") for s, n in runs)
