"""The policy explorer: what autocast does to each op, and to a chain of them, on both devices.

Both tables are observed on the installed torch (`mptutor.policy.observe`), without a GPU. The
learner finds an op, reads off its rule on either device, and puts ops one after another: the chain
shows which dtype a tensor has after each. A step is looked up in the op's row by the dtype that
came out of the step before, so the figure knows nothing of autocast but what was observed.

What an op's *other* operands have is the learner's choice: the dtype of the tensor, as when both
come from the same place, or FP32, as a residual stream or a mask often is. Weights are FP32 where
the op is a layer (``nn.…``) or a norm. A chain breaks off at an op that raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import traitlets

from mptutor.palette import colour, ink_on
from mptutor.policy import OpPolicy, PolicyTable, observe
from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet

#: The longest chain.
LONGEST = 12

#: What the controls offer.
CHOICES = {"start": ("float32", "16-bit"), "other": ("same", "float32")}

#: Chains to look at, each with a name.
PRESETS = {
    "CNN block": ("conv2d", "batch_norm", "relu", "max_pool2d"),
    "transformer MLP": ("layer_norm", "linear", "gelu", "linear", "add"),
    "classifier": ("linear", "log_softmax", "nll_loss"),
    "probabilities": ("linear", "sigmoid", "binary_cross_entropy"),
}

_DOES = {
    "16-bit": "runs in 16 bits",
    "FP32": "runs in FP32",
    "widest": "runs in the widest dtype of its operands",
    "as given": "runs in the dtype it is given",
    "raises": "is refused",
    "not observed": "could not be observed",
}

#: Between the devices in state and view, and in sentences.
_DEVICES = {"cuda": "CUDA", "cpu": "the CPU"}


@dataclass(frozen=True)
class ChainStep:
    """An op of the chain, and what it gives on either device.

    A dtype, ``"raises"``, ``"not observed"``, or nothing once the chain has broken off.
    """

    op: str
    cuda: str
    cpu: str


@dataclass(frozen=True)
class PolicyExplorerResult:
    """Everything the figure shows; ``problem`` is a sentence if a position made no sense."""

    problem: str
    matches: tuple[str, ...]
    op: str
    cuda_rule: str
    cpu_rule: str
    steps: tuple[ChainStep, ...]


class PolicyExplorer(LiveFigure):
    """Autocast's two tables, to search, and a chain of ops to build.

    Parameters
    ----------
    cuda, cpu : PolicyTable
        Both of the same 16-bit dtype; by default, FP16's are observed, once a session.
    search : str
        Words that an op's name or family must have.
    op : str
        The op to look at.
    chain : iterable of str
        At most 12 ops.
    start, other : str
        What the chain starts with, ``"float32"`` or ``"16-bit"``; what other operands have,
        ``"same"`` or ``"float32"``.

    Attributes
    ----------
    search, op, chain, start, other
        What the learner changes, as above. An op that is not in the table gives a
        ``result.problem`` and is left out.

    Raises
    ------
    ValueError
        If the tables do not belong together, or ``start`` or ``other`` is none of the above.
    """

    _esm = javascript("controls", "policy_chain", "policy_explorer")
    _css = stylesheet("controls", "policy_explorer")

    search = traitlets.Unicode().tag(sync=True)
    op = traitlets.Unicode().tag(sync=True)
    chain = traitlets.List(traitlets.Unicode()).tag(sync=True)
    start = traitlets.Unicode().tag(sync=True)
    other = traitlets.Unicode().tag(sync=True)
    tables = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        cuda: PolicyTable | None = None,
        cpu: PolicyTable | None = None,
        search: str = "",
        op: str = "linear",
        chain: Iterable[str] = (),
        start: str = "float32",
        other: str = "same",
    ) -> None:
        super().__init__(search=search, op=op, chain=list(chain), start=start, other=other)
        self.set_trait("tables", _tables(cuda or _observed("cuda"), cpu or _observed("cpu")))

    @property
    def result(self) -> PolicyExplorerResult:
        """The op looked at, and the chain followed on both devices."""
        rows = {row["op"]: row for row in self.tables["ops"]}
        chosen = rows.get(self.op, self.tables["ops"][0])
        chain = [op for op in self.chain if op in rows][:LONGEST]
        followed = [self._follow([rows[op][device] for op in chain]) for device in _DEVICES]
        return PolicyExplorerResult(
            problem=self._problem(rows),
            matches=tuple(op for op, row in rows.items() if _matches(row, self.search)),
            op=chosen["op"],
            cuda_rule=chosen["rules"]["cuda"],
            cpu_rule=chosen["rules"]["cpu"],
            steps=tuple(map(ChainStep, chain, *followed)),
        )

    def describe(self) -> str:
        """Return the rules of the op, and where the chain comes out."""
        result = self.result
        if result.problem:
            return result.problem
        on_cuda, on_cpu = _DOES[result.cuda_rule], _DOES[result.cpu_rule]
        said = (
            f"{result.op} {on_cuda} on both."
            if on_cuda == on_cpu
            else f"{result.op} {on_cuda} on CUDA and {on_cpu} on the CPU."
        )
        if not result.steps:
            return said
        cuda, cpu = (self._comes_out(result, device) for device in _DEVICES)
        both = f"{cuda} on both" if cuda == cpu else f"{cuda} on CUDA and {cpu} on the CPU"
        return f"{said} From {self._dtype_of(self.start)}, the chain {both}."

    def picture(self) -> str:
        """Return the op's rules and the chain as SVG."""
        return draw(self)

    def _follow(self, outcomes: list[list[str]]) -> list[str]:
        """Return what each op gives, from its row of outcomes for 16-bit, FP32, mixed operands."""
        dtype, seen = self._dtype_of(self.start), []
        for low, wide, mixed in outcomes:
            if dtype == "float32":
                dtype = wide
            elif dtype == self.tables["dtype"]:
                dtype = low if self.other == "same" else mixed
            else:
                dtype = ""
            seen.append(dtype)
        return seen

    def _comes_out(self, result: PolicyExplorerResult, device: str) -> str:
        seen = [getattr(step, device) for step in result.steps]
        if "" not in seen and seen[-1] not in ("raises", "not observed"):
            return f"comes out {seen[-1]}"
        last = sum(dtype != "" for dtype in seen) - 1
        return f"breaks off at {result.steps[last].op}"

    def _dtype_of(self, choice: str) -> str:
        return self.tables["dtype"] if choice == "16-bit" else choice

    def _problem(self, rows: dict[str, Any]) -> str:
        for op in (self.op, *self.chain):
            if op not in rows:
                return f"There is no op “{op}” in the table of {len(rows)}."
        if len(self.chain) > LONGEST:
            return f"The chain has {len(self.chain)} ops; shown are the first {LONGEST}."
        if not any(_matches(row, self.search) for row in rows.values()):
            return f"No op or family of the table has “{self.search}” in its name."
        return ""

    @traitlets.validate("start", "other")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(CHOICES[name])}")
        return value


@cache
def _observed(device: str) -> PolicyTable:
    return observe(device)


def _tables(cuda: PolicyTable, cpu: PolicyTable) -> dict[str, Any]:
    """Return both tables as the view reads them."""
    for name, table in (("cuda", cuda), ("cpu", cpu)):
        if table.device != name:
            raise ValueError(f"{name}: got a table of {table.device!r}")
    if cuda.dtype is not cpu.dtype:
        raise ValueError(f"cpu: is a table of {cpu.dtype}, and cuda of {cuda.dtype}")
    return {
        "dtype": str(cuda.dtype).removeprefix("torch."),
        "torch": cuda.torch_version,
        "longest": LONGEST,
        "presets": [[name, list(ops)] for name, ops in PRESETS.items()],
        "does": _DOES,
        "ops": [_row(entry, cpu[entry.op]) for entry in cuda],
    }


def _row(cuda: OpPolicy, cpu: OpPolicy) -> dict[str, Any]:
    return {
        "op": cuda.op,
        "family": cuda.family,
        "cuda": list(cuda.outcomes()),
        "cpu": list(cpu.outcomes()),
        "rules": {"cuda": cuda.rule, "cpu": cpu.rule},
        "errors": {"cuda": _error(cuda), "cpu": _error(cpu)},
    }


def _error(entry: OpPolicy) -> str:
    """Return the first line of what the op raised, if it did."""
    texts = [x.error for x in (entry.low, entry.fp32, entry.mixed) if x.error]
    return texts[0].splitlines()[0][:160] if texts else ""


def _matches(row: dict[str, Any], search: str) -> bool:
    name = f"{row['op']} {row['family']}".lower()
    return all(word in name for word in search.lower().split())


# -- the picture for readers without scripts -----------------------------------------------------

_WIDTH, _ROW, _STEP, _PER_LINE = 640, 86, 118, 5
_FILLS = {"float16": "FP16", "bfloat16": "BF16"}


def draw(figure: PolicyExplorer) -> str:
    """Return the rules of the op and the chain, five steps a line, as an SVG document."""
    result = figure.result
    start = ChainStep("start", *2 * [figure._dtype_of(figure.start)])
    steps = [start, *result.steps]
    lines = -(-len(steps) // _PER_LINE)
    rules = f"{result.op}: {result.cuda_rule} on CUDA, {result.cpu_rule} on the CPU"
    parts = [svg.text(20, 30, rules, bold=True, size=14)]
    for i, step in enumerate(steps):
        x, y = 20 + _STEP * (i % _PER_LINE), 60 + _ROW * (i // _PER_LINE)
        parts.append(svg.text(x, y, ("→ " if i else "") + _short(step.op), size=12))
        for label, dtype, top in (("CUDA", step.cuda, y + 8), ("CPU", step.cpu, y + 34)):
            parts += _chip(x, top, label, dtype)
    return svg.drawing(_WIDTH, 60 + _ROW * lines, figure.describe(), parts)


def _short(op: str) -> str:
    return op if len(op) <= 13 else f"{op[:12]}…"


def _chip(x: float, y: float, label: str, dtype: str) -> list[str]:
    fill = _FILLS.get(dtype, "surface")
    ink = ink_on(colour(fill)) if dtype in _FILLS else "ink"
    box = svg.rectangle(x, y, _STEP - 12, 22, fill, stroke="ink" if dtype else "line", radius=4)
    said = f"{label} {dtype or '–'}"
    return [box, svg.text(x + 6, y + 15, said, fill=ink, size=11, code=True)]
