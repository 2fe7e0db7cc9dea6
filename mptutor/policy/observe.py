"""What autocast makes of each op, seen from outside: dtypes in, dtype out.

`observe` runs every sample call of `mptutor.policy.calls` in an autocast region three times, with
16-bit operands, with FP32 operands, and with the two in turn, and notes the dtype that comes out
or the error.  For CUDA it does so on *fake* tensors, which have a device, a dtype and a shape and
compute nothing, so no GPU is needed: which kernels autocast calls is decided before any runs.

An op that fails without autocast on plain FP32 says nothing about autocast.  It is listed as not
observed: on fake CUDA these are the few ops that ask the driver or the values something.
Fake tensors do not know which kernels exist, either: on a GPU an op may raise for want of a 16-bit
kernel, or refuse a mix of dtypes, where the table has a dtype.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mptutor.policy.calls import FAMILIES, Call, Operands
from mptutor.policy.classes import autocast_on


@dataclass(frozen=True)
class Outcome:
    """What came out of one call: a dtype, or an error.

    Attributes
    ----------
    dtype
        Of the first result that is not an integer; None if the call raised or was not observed.
    error
        The error's text, empty if there was none.
    observed
        False if the call fails without autocast too.
    """

    dtype: torch.dtype | None = None
    error: str = ""
    observed: bool = True

    def __str__(self) -> str:
        if self.dtype is not None:
            return str(self.dtype).removeprefix("torch.")
        return "raises" if self.observed else "not observed"


@dataclass(frozen=True)
class OpPolicy:
    """What comes out of one op for 16-bit, FP32 and mixed operands."""

    op: str
    family: str
    low: Outcome
    fp32: Outcome
    mixed: Outcome

    @property
    def observed(self) -> bool:
        """Whether all three calls say something about autocast."""
        return self.low.observed and self.fp32.observed and self.mixed.observed

    @property
    def rule(self) -> str:
        """Sum the three up: "16-bit", "FP32", "widest", "as given", "raises" or "not observed"."""
        if not self.observed:
            return "not observed"
        if self.low.dtype is None and self.fp32.dtype is None:
            return "raises"
        if self.low.dtype == self.fp32.dtype:
            return "FP32" if self.fp32.dtype in (torch.float32, torch.complex64) else "16-bit"
        return "widest" if self.mixed.dtype == self.fp32.dtype else "as given"

    def outcomes(self) -> tuple[str, str, str]:
        """Give the three in words."""
        return str(self.low), str(self.fp32), str(self.mixed)


@dataclass(frozen=True)
class PolicyTable:
    """Autocast's policy on one device, op by op.

    ``table["softmax"].rule`` looks an op up, iterating gives an `OpPolicy` each.
    """

    device: str
    dtype: torch.dtype
    torch_version: str
    ops: tuple[OpPolicy, ...]

    def __iter__(self) -> Iterator[OpPolicy]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, op: str) -> OpPolicy:
        for entry in self.ops:
            if entry.op == op:
                return entry
        raise KeyError(f"no op called {op!r} in the table; see [entry.op for entry in table]")

    def by_rule(self) -> dict[str, list[str]]:
        """Group the ops by what autocast does to them."""
        groups: dict[str, list[str]] = {}
        for entry in self.ops:
            groups.setdefault(entry.rule, []).append(entry.op)
        return groups

    def _repr_html_(self) -> str:
        title = f"torch.autocast({self.device!r}, {self.dtype}), torch {self.torch_version}"
        low = str(self.dtype).removeprefix("torch.")
        rows = [(e.family, e.op, *e.outcomes(), e.rule) for e in self.ops]
        return _html_table(title, ("family", "op", low, "float32", "mixed", "rule"), rows)


@dataclass(frozen=True)
class PolicyDifference:
    """The ops for which two tables disagree, each with its entry in either."""

    first: str
    second: str
    ops: tuple[tuple[OpPolicy, OpPolicy], ...]

    def __len__(self) -> int:
        return len(self.ops)

    def _repr_html_(self) -> str:
        header = ("op", *(f"{d}: {k}" for d in (self.first, self.second) for k in _OPERANDS))
        rows = [(a.op, *a.outcomes(), *b.outcomes()) for a, b in self.ops]
        return _html_table(f"{self.first} and {self.second} differ", header, rows)


_OPERANDS = ("16-bit", "FP32", "mixed")


def observe(device: str, dtype: torch.dtype = torch.float16, *, fake: bool = True) -> PolicyTable:
    """Run every sample call under autocast and note what comes out.

    Parameters
    ----------
    device
        ``"cuda"`` or ``"cpu"``.
    dtype
        Autocast's 16-bit dtype, `torch.float16` or `torch.bfloat16`.
    fake
        For CUDA, use fake tensors even if there is a GPU: the table is then the same everywhere.
        With False the ops run on the GPU.

    Returns
    -------
    PolicyTable
        An entry for each op, in families.

    Raises
    ------
    ValueError
        If ``device`` or ``dtype`` is another one, or ``fake`` is False and there is no CUDA GPU.
    """
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device: must be 'cuda' or 'cpu', got {device!r}")
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"dtype: must be torch.float16 or torch.bfloat16, got {dtype}")
    if device == "cuda" and not fake and not torch.cuda.is_available():
        raise ValueError(
            "fake: False runs the ops on a CUDA GPU, and there is none; allowed is True"
        )
    on_fakes = device == "cuda" and fake
    with _quietly(), _fake_tensors() if on_fakes else nullcontext():
        ops = tuple(
            _observe_op(name, family, call, device, dtype)
            for family, calls in FAMILIES.items()
            for name, call in calls.items()
        )
    return PolicyTable(device, dtype, torch.__version__, ops)


def difference(first: PolicyTable, second: PolicyTable) -> PolicyDifference:
    """List the ops observed in both tables whose outcomes differ, errors being all alike."""
    pairs = ((entry, second[entry.op]) for entry in first)
    differing = tuple(
        (a, b) for a, b in pairs if a.observed and b.observed and a.outcomes() != b.outcomes()
    )
    return PolicyDifference(first.device, second.device, differing)


def _observe_op(name: str, family: str, call: Call, device: str, dtype: torch.dtype) -> OpPolicy:
    def outcome(*dtypes: torch.dtype) -> Outcome:
        try:
            with autocast_on(device, dtype):
                return Outcome(_result_dtype(call(Operands(device, dtypes))))
        except Exception as error:
            return Outcome(error=str(error), observed=_runs_alone(call, device))

    wide = torch.float32
    return OpPolicy(name, family, outcome(dtype), outcome(wide), outcome(dtype, wide))


def _runs_alone(call: Call, device: str) -> bool:
    """Tell whether a call works on FP32 operands without autocast."""
    try:
        with torch.autocast(device, enabled=False):
            call(Operands(device, [torch.float32]))
    except Exception:
        return False
    return True


def _result_dtype(result: object) -> torch.dtype:
    tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    return next(x.dtype for x in tensors if x.is_floating_point() or x.is_complex())


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep warnings and fake mode's error log back, and torch's random state as it is."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Make every tensor fake, and layers that cuDNN would run use the path beside it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.backends.cudnn.flags(enabled=False):
        yield


def _html_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def cells(tag: str, values: tuple[str, ...]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(v)}</{tag}>" for v in values) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{cells('th', header)}{body}</table>"
