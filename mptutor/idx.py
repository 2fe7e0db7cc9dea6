"""Reads the IDX files that MNIST and its successors come in, and trusts none of them unseen.

An IDX file is a header and a block of numbers.  The header is two zero bytes, a byte for the type
of the numbers (0x08: unsigned bytes), a byte for the number of dimensions, and each dimension's
length as a big-endian 32-bit integer; the numbers follow in row-major order.  The files are usually
gzipped.

A download that broke off half-way leaves a file of the right name and the wrong length.  Trained
on, it gives a curve that looks plausible, so every way in which a file can be wrong is an error
here that names the file and the remedy: its checksum, its compression, its header, its length.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from math import prod
from pathlib import Path

import torch

_UNSIGNED_BYTE = 0x08


class DataError(RuntimeError):
    """A data file is missing, broken or not what it should be; the text holds the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path} {problem}.\nWhat to do: {remedy}")
        self.path = path
        self.remedy = remedy


def read_idx(path: Path, *, dims: int, remedy: str) -> torch.Tensor:
    """Read one IDX file of unsigned bytes, gzipped or not.

    Parameters
    ----------
    path
        The file; a name ending in ``.gz`` is decompressed.
    dims
        The number of dimensions it must have: 3 for images (count, rows, columns), 1 for labels.
    remedy
        What the reader should do if the file is broken; it closes every error.

    Returns
    -------
    torch.Tensor
        uint8, shape as in the header.

    Raises
    ------
    DataError
        If the file is missing, truncated, of another format, or longer or shorter than its header
        says.
    """
    content = _read_bytes(path, remedy)
    header_bytes = 4 + 4 * dims
    magic = bytes([0, 0, _UNSIGNED_BYTE, dims])
    if content[:4] != magic or len(content) < header_bytes:
        found = content[:4].hex() or "nothing"
        raise DataError(
            path, f"is not an IDX file: it begins with {found}, not {magic.hex()}", remedy
        )
    shape = struct.unpack(f">{dims}I", content[4:header_bytes])
    if len(content) - header_bytes != prod(shape):
        raise DataError(
            path,
            f"holds {len(content) - header_bytes:,} values where its header promises "
            f"{' x '.join(map(str, shape))} = {prod(shape):,}",
            remedy,
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header_bytes:].view(shape)


def _read_bytes(path: Path, remedy: str) -> bytes:
    if not path.is_file():
        raise DataError(path, "is missing", remedy)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(path, f"is damaged or was only half downloaded ({error})", remedy) from None


def verify(path: Path, digest: str, *, algorithm: str, remedy: str) -> None:
    """Raise `DataError` unless the file's checksum (``"sha256"``, ``"md5"``) is `digest`."""
    if not path.is_file():
        raise DataError(path, "is missing", remedy)
    if checksum(path, algorithm) != digest:
        raise DataError(
            path, f"is not the file it should be: its {algorithm} checksum is wrong", remedy
        )


def checksum(path: Path, algorithm: str) -> str:
    """Return the hexadecimal checksum of a file."""
    hasher = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.hexdigest()
