"""Small real images, on the device, in seeded batches.

Three sets, one call.  `fashion-mnist-5k` (500 training and 100 test images of each of ten classes)
ships with the package, so a lesson never waits for a network; `fashion-mnist` and `cifar10` are
downloaded once through torchvision.  When that fails the shipped set stands in, a warning says so,
and `ImageData.name` tells which set the numbers come from.

A whole set fits in memory, so it is kept there as one normalised FP32 tensor and a batch is one
`index_select`.  That is what these lessons need: nothing between two training steps that could be
taken for the cost of the step.  Real training decodes and augments images in worker processes
(`torch.utils.data.DataLoader`) because its sets are larger than memory.

>>> data = load("fashion-mnist-5k", size=32, channels=3)
>>> for images, labels in batches(data.train, 128, seed=0):
...     pass
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mptutor.datafiles import SETS, RawSet, UnavailableError, read_shipped
from mptutor.idx import DataError

__all__ = ["DataError", "ImageData", "Split", "batches", "load"]


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Attributes
    ----------
    images
        float32, (count, channels, height, width), normalised with the training set's mean and
        standard deviation.
    labels
        int64, (count,).
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        return f"Split({len(self):,} images of {shape} on {self.images.device})"


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: which one it is, its two splits, and how it was normalised.

    `name` is the set that was really loaded.  `mean` and `std` hold one number per original
    channel: ``images = (pixels / 255 - mean) / std``.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.train.images.shape[1:]))
        return (
            f"ImageData({self.name}: {len(self.train):,} training and {len(self.test):,} test "
            f"images of {shape}, {len(self.classes)} classes)"
        )


def load(
    name: str = "fashion-mnist-5k",
    *,
    size: int | None = None,
    channels: int | None = None,
    device: torch.device | str = "cpu",
    root: str | Path | None = None,
    fallback: bool = True,
) -> ImageData:
    """Load a data set.

    Parameters
    ----------
    name
        ``"fashion-mnist-5k"`` (shipped), ``"fashion-mnist"`` or ``"cifar10"`` (downloaded once).
    size
        Height and width wanted; images are padded with black, evenly on all sides.  The default is
        the set's own: 28 for Fashion-MNIST, 32 for CIFAR-10.
    channels
        3 turns gray images into three equal channels; the default is the set's own.
    device
        Where the whole set is put.
    root
        Where downloads are kept; the default is the environment variable ``MPTUTOR_DATA``, or
        ``~/.cache/mptutor``.
    fallback
        Use the shipped set, with a warning, when the one asked for can't be had.  A recorded
        measurement should say False.

    Raises
    ------
    ValueError
        For an unknown name, or a size or number of channels that the set can't be given.
    DataError
        If a file is broken (it is never used), or the set can't be had and `fallback` is False.
    """
    if name not in SETS:
        raise ValueError(f"name: got {name!r}, allowed are {', '.join(map(repr, SETS))}")
    own = SETS[name]
    size = own.size if size is None else size
    channels = own.channels if channels is None else channels
    folder = _root(root)
    try:
        raw = own.read(folder)
    except UnavailableError as error:
        remedy = (
            f"connect to the network and call load({name!r}) again (it needs torchvision and is "
            f"kept in {folder}), or set MPTUTOR_DATA to a folder that has it."
        )
        if not fallback:
            raise DataError(folder, f"has no {name}: {error}", remedy) from error
        warnings.warn(
            f"{name} can't be had now ({error}); the shipped fashion-mnist-5k stands in for it, "
            f"so accuracies will differ. To get {name}: {remedy}",
            stacklevel=2,
        )
        name, raw = "fashion-mnist-5k", read_shipped(folder)
    return _prepare(name, raw, size, channels, torch.device(device))


def batches(
    split: Split,
    batch_size: int,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of batches ``(images, labels)``.

    Parameters
    ----------
    split
        A training or test set.
    batch_size
        Images a batch, from 1 to the size of the split.
    seed
        Fixes the order; the same on every device.  Give each epoch its own.
    generator
        A CPU generator to draw the order from instead; it goes on from epoch to epoch.
    device
        Where the batches are wanted, if not where the split is.
    shuffle
        False keeps the order of the files.
    drop_last
        Leave out the last batch if it is smaller than the others.
    """
    if not 1 <= batch_size <= len(split):
        raise ValueError(f"batch_size: got {batch_size}, allowed is 1 to {len(split)}")
    if shuffle:
        generator = generator or torch.Generator().manual_seed(seed)
        order = torch.randperm(len(split), generator=generator)
    else:
        order = torch.arange(len(split))
    if drop_last:
        order = order[: len(order) - len(order) % batch_size]
    return _pick(split, order.to(split.labels.device), batch_size, device)


def _pick(
    split: Split, order: Tensor, batch_size: int, device: torch.device | str | None
) -> Iterator[tuple[Tensor, Tensor]]:
    for chosen in order.split(batch_size):
        images = split.images.index_select(0, chosen)
        labels = split.labels.index_select(0, chosen)
        yield images.to(device), labels.to(device)


def _prepare(name: str, raw: RawSet, size: int, channels: int, device: torch.device) -> ImageData:
    _, own_channels, own_size, _ = raw.train_pixels.shape
    if size < own_size or (size - own_size) % 2:
        raise ValueError(
            f"size: got {size}, but {name} is {own_size} wide and can only be padded evenly"
        )
    if channels not in (own_channels, 3):
        raise ValueError(f"channels: got {channels}, allowed are {sorted({own_channels, 3})}")
    scaled = raw.train_pixels.float().div_(255)
    std, mean = torch.std_mean(scaled, dim=(0, 2, 3), correction=0, keepdim=True)

    def split(pixels: Tensor, labels: Tensor) -> Split:
        margin = (size - own_size) // 2
        padded = F.pad(pixels, (margin,) * 4).float().div_(255)
        images = padded.sub_(mean).div_(std).to(device)
        # Equal channels share their memory: index_select copies out of an expanded tensor.
        return Split(images.expand(-1, channels, -1, -1), labels.to(device))

    return ImageData(
        name,
        split(raw.train_pixels, raw.train_labels),
        split(raw.test_pixels, raw.test_labels),
        raw.classes,
        tuple(mean.flatten().tolist()),
        tuple(std.flatten().tolist()),
    )


def _root(root: str | Path | None) -> Path:
    default = Path.home() / ".cache" / "mptutor"
    return Path(root or os.environ.get("MPTUTOR_DATA") or default).expanduser()
