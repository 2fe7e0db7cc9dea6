"""What is trained: a model, its batches, its loss, and the test that it is put to.

A `Task` says nothing about precision and a `Recipe` says nothing about the model, so any task can
be trained by any recipe.  Whatever is random in a task comes from the seed: the weights, drawn on
the CPU so that they are the same on every device, the order of the images, and noise, which is part
of the batch and not drawn by the model.  Two recipes with the same seed then see the same numbers,
and what differs between them is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import ImageData, Split, batches
from mptutor.experiments.recipes import MakeOptimizer

Batch = tuple[Tensor, ...]

_TEST_BATCH = 500


@dataclass(frozen=True)
class Task:
    """A training, but for its arithmetic.

    Attributes
    ----------
    name, data
        What is trained, and on which data set.
    batch_size, steps_per_epoch
        How much of it at a time.
    build
        Seed -> FP32 model.
    batches
        Seed and epoch -> the batches of that epoch, on the device.
    loss
        Prepared model and batch -> the loss, and any terms of it to be watched on their own.
    optimizer
        Parameters -> optimizer.
    test
        Prepared model -> accuracy from 0 to 1; None where there is nothing to be right about.
    """

    name: str
    data: str
    batch_size: int
    steps_per_epoch: int
    build: Callable[[int], nn.Module]
    batches: Callable[[int, int], Iterator[Batch]]
    loss: Callable[[nn.Module, Batch], tuple[Tensor, dict[str, Tensor]]]
    optimizer: MakeOptimizer
    test: Callable[[nn.Module], float] | None = None


def classify(
    name: str,
    data: ImageData,
    build: Callable[[], nn.Module],
    optimizer: MakeOptimizer,
    *,
    batch_size: int = 128,
) -> Task:
    """Make the task of naming the class of each image."""

    def epoch_batches(seed: int, epoch: int) -> Iterator[Batch]:
        return batches(data.train, batch_size, seed=order_seed(seed, epoch), drop_last=True)

    return Task(
        name=name,
        data=data.name,
        batch_size=batch_size,
        steps_per_epoch=len(data.train) // batch_size,
        build=lambda seed: seeded(build, seed),
        batches=epoch_batches,
        loss=cross_entropy,
        optimizer=optimizer,
        test=lambda model: accuracy(model, data.test),
    )


def cross_entropy(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a classifier, which has one term."""
    images, labels = batch
    return F.cross_entropy(model(images), labels), {}


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Return the share of images that the model names rightly."""
    right = sum(
        (model(images).argmax(-1) == labels).sum()
        for images, labels in batches(split, _TEST_BATCH, shuffle=False)
    )
    return right.item() / len(split)


def adam(lr: float = 1e-3, eps: float = 1e-8) -> MakeOptimizer:
    """Return what makes Adam; its default ``eps`` is torch's, and is 0 in FP16."""
    return lambda weights: torch.optim.Adam(weights, lr=lr, eps=eps)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a model from a seed and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return build()


def order_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order, different for every epoch of every run."""
    return 1000 * seed + epoch


def shorten(data: ImageData, images: int) -> ImageData:
    """Return the data with only so many training images."""
    train = Split(data.train.images[:images], data.train.labels[:images])
    return replace(data, train=train)
