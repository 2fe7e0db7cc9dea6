"""Where each data set's files are, how they are fetched, and how they are checked before use.

The shipped set carries a list of SHA-256 checksums; for downloaded sets torchvision knows the URLs
and MD5 checksums, and both are asked of the installed torchvision.  torchvision itself trusts
Fashion-MNIST's unpacked files once they exist, whatever is in them, so here the packed ones are
verified and read at every load.

Two kinds of failure are kept apart.  A file that is there and wrong is a `DataError`: somebody has
to decide what to do with it.  A set that isn't there and can't be fetched is an `UnavailableError`:
`mptutor.data.load` may then use the shipped set instead.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import torch
from torch import Tensor

from mptutor.idx import DataError, read_idx, verify

_SHIPPED = Path(__file__).parent / "data_files" / "fashion-mnist-5k"
_FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class RawSet:
    """What the files hold: uint8 pixels (count, channels, height, width) and int64 labels."""

    train_pixels: Tensor
    train_labels: Tensor
    test_pixels: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]


class UnavailableError(Exception):
    """A set is not on this machine and could not be fetched."""


def read_shipped(_root: Path) -> RawSet:
    """Read the set that comes with the package, from the package."""
    remedy = (
        "restore it: 'git checkout -- mptutor/data_files' in a clone of the course, "
        "'pip install --force-reinstall --no-deps mptutor' elsewhere."
    )
    for line in (_SHIPPED / "SHA256SUMS").read_text().splitlines():
        digest, filename = line.split()
        verify(_SHIPPED / filename, digest, algorithm="sha256", remedy=remedy)
    return _read_idx_folder(_SHIPPED, remedy)


def _read_idx_folder(folder: Path, remedy: str) -> RawSet:
    """Read the four files, named as all of MNIST's family are."""

    def pair(prefix: str) -> tuple[Tensor, Tensor]:
        pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", dims=3, remedy=remedy)
        path = folder / f"{prefix}-labels-idx1-ubyte.gz"
        labels = read_idx(path, dims=1, remedy=remedy)
        if len(labels) != len(pixels):
            raise DataError(path, f"has {len(labels):,} labels for {len(pixels):,} images", remedy)
        return pixels.unsqueeze(1), labels.long()

    return RawSet(*pair("train"), *pair("t10k"), _FASHION_CLASSES)


def _read_fashion_mnist(root: Path) -> RawSet:
    with _needs_torchvision():
        from torchvision.datasets import FashionMNIST
        from torchvision.datasets.utils import download_url
    folder = root / "FashionMNIST" / "raw"  # where torchvision looks too
    remedy = "delete it and load 'fashion-mnist' again."
    for filename, md5 in FashionMNIST.resources:
        if not (folder / filename).exists():
            with _downloading(folder / filename):
                download_url(FashionMNIST.mirrors[0] + filename, str(folder), filename, md5)
        verify(folder / filename, md5, algorithm="md5", remedy=remedy)
    return _read_idx_folder(folder, remedy)


def _read_cifar10(root: Path) -> RawSet:
    with _needs_torchvision():
        from torchvision.datasets import CIFAR10
    remedy = "delete it and load 'cifar10' again."
    archive = root / CIFAR10.filename
    files = {
        root / CIFAR10.base_folder / filename: md5
        for filename, md5 in CIFAR10.train_list + CIFAR10.test_list
    }
    if not all(path.exists() for path in files):
        if archive.exists():
            verify(archive, CIFAR10.tgz_md5, algorithm="md5", remedy=remedy)
        with _downloading(archive):
            CIFAR10(str(root), download=True)
    for path, md5 in files.items():
        verify(path, md5, algorithm="md5", remedy=remedy)
    train, test = CIFAR10(str(root), train=True), CIFAR10(str(root), train=False)

    def pair(split: CIFAR10) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(split.data).permute(0, 3, 1, 2)  # stored channels last
        return pixels.contiguous(), torch.tensor(split.targets)

    return RawSet(*pair(train), *pair(test), tuple(train.classes))


@contextlib.contextmanager
def _needs_torchvision() -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:  # absent, or built for another torch
        raise UnavailableError(f"torchvision can't be imported: {error}") from error


@contextlib.contextmanager
def _downloading(target: Path) -> Iterator[None]:
    """Leave no half a file behind, and give up on a network that doesn't answer."""
    existed = target.exists()
    timeout_before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    except BaseException as error:
        if not existed:
            target.unlink(missing_ok=True)
        if isinstance(error, (OSError, HTTPException, RuntimeError)):
            raise UnavailableError(f"the download failed: {error}") from error
        raise
    finally:
        socket.setdefaulttimeout(timeout_before)


@dataclass(frozen=True)
class Source:
    """How to read a set, and the image size and number of channels it has of its own."""

    read: Callable[[Path], RawSet]
    size: int
    channels: int


SETS = {
    "fashion-mnist-5k": Source(read_shipped, size=28, channels=1),
    "fashion-mnist": Source(_read_fashion_mnist, size=28, channels=1),
    "cifar10": Source(_read_cifar10, size=32, channels=3),
}
