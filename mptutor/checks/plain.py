"""Values as plain data: what crosses from a learner's process to the judge.

A judge that looked at a learner's objects would run the learner's code: an ``__eq__`` that always
says yes is a correct answer to every question. So a value is taken down to numbers, text, dtypes,
shapes and bytes on the learner's side, travels as JSON, and is built up again on the other side
from known types alone. Nothing is unpickled.

Exact types decide. A subclass of `float` may do anything, so it counts as an unknown object and is
passed on by the name of its type.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch

#: Limits on what is taken down, so that no answer can fill the judge's memory.
MAX_DEPTH = 6
MAX_ITEMS = 10_000
MAX_BYTES = 4_000_000

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


@dataclass(frozen=True)
class Unknown:
    """Stands for a value that has no plain form. Equal to nothing that a task expects."""

    type_name: str

    def __repr__(self) -> str:
        return f"an object of type {self.type_name}"


def pack(value: Any, depth: int = 0) -> Any:
    """Take ``value`` down to what JSON can carry.

    Raises
    ------
    ValueError
        If it is nested deeper than `MAX_DEPTH`, or holds more than `MAX_ITEMS` or `MAX_BYTES`.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"the answer is nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return {"int": hex(_limited(value.bit_length(), 8 * MAX_BYTES) and value)}
    if kind is str:
        _limited(len(value), MAX_BYTES)
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return {"tensor": _pack_tensor(value)}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind is list or kind is tuple or kind is torch.Size:
        _limited(len(value), MAX_ITEMS)
        return {"list": [pack(item, depth + 1) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        _limited(len(value), MAX_ITEMS)
        return {"dict": {key: pack(item, depth + 1) for key, item in value.items()}}
    if kind.__module__ == "numpy" and hasattr(value, "dtype"):
        return _pack_numpy(value, depth)
    return {"unknown": kind.__name__}


def unpack(plain: Any, depth: int = 0) -> Any:
    """Build up again what `pack` took down: a fresh value of a known type.

    Raises
    ------
    ValueError
        If ``plain`` is nothing that `pack` writes.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"the answer is nested deeper than {MAX_DEPTH} levels")
    if plain is None or type(plain) in (bool, str):
        return plain
    if type(plain) is not dict or len(plain) != 1:
        raise ValueError(f"not a plain value: {str(plain)[:80]}")
    ((kind, content),) = plain.items()
    match kind:
        case "int":
            return int(_expect(content, str), 16)
        case "float":
            return float.fromhex(_expect(content, str))
        case "tensor":
            return _unpack_tensor(_expect(content, dict))
        case "dtype":
            name = _expect(content, str)
            return _DTYPES.get(name, Unknown(f"torch.{name[:20]}"))
        case "list":
            return [unpack(item, depth + 1) for item in _expect(content, list)]
        case "dict":
            return {key: unpack(item, depth + 1) for key, item in _expect(content, dict).items()}
        case "unknown":
            return Unknown(_expect(content, str)[:80])
    raise ValueError(f"not a plain value: {str(kind)[:80]}")


def _pack_tensor(x: torch.Tensor) -> dict[str, Any]:
    x = x.detach().cpu().contiguous()
    _limited(x.numel() * x.element_size(), MAX_BYTES)
    raw = x.reshape(-1).view(torch.uint8)
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "bytes": base64.b64encode(bytes(raw.tolist())).decode(),
    }


def _unpack_tensor(plain: dict[str, Any]) -> torch.Tensor | Unknown:
    dtype = _DTYPES.get(_expect(plain.get("dtype"), str))
    if dtype is None:
        return Unknown(f"tensor of {plain['dtype'][:20]}")
    shape = _expect(plain.get("shape"), list)
    raw = base64.b64decode(_expect(plain.get("bytes"), str), validate=True)
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"not a shape: {str(shape)[:80]}")
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes do not fill a {dtype} tensor of shape {shape}")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _pack_numpy(value: Any, depth: int) -> Any:
    """Numpy's scalars count as Python's numbers, its arrays as tensors."""
    if value.shape == ():
        return pack(value.item(), depth)
    try:
        return pack(torch.from_numpy(value), depth)
    except TypeError:
        return {"unknown": f"numpy array of {value.dtype}"}


def _limited(size: int, limit: int) -> bool:
    if size > limit:
        raise ValueError(f"the answer is too large: {size} where {limit} are allowed")
    return True


def _expect(content: Any, kind: type) -> Any:
    if type(content) is not kind:
        raise ValueError(f"not a plain value: {str(content)[:80]}")
    return content
