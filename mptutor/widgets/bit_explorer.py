"""The bit explorer: one number in many formats at once, bit by bit.

The learner wants a number and sees what each format makes of it: which code, which value, how far
off. Every bit can be flipped. The model holds the number as text (``text``), because a number typed
as ``2048+1`` should stay that, and the code of the selected format (``code``), because a NaN has
many codes and no number tells them apart.

Unlike other widgets this one computes in its view too: 32-bit formats have too many codes to send a
table. ``formats.js`` is `FloatFormat` once more; the tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import traitlets

from mptutor import formats as ff
from mptutor.formats import FloatFormat, get_format
from mptutor.palette import colour, ink_on
from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.typed_numbers import is_readable, print_number, read_number

#: The widest exponents first, so that equal ranges stand together.
SHOWN_FORMATS = (
    ff.FP32,
    ff.TF32,
    ff.BF16,
    ff.FP16,
    ff.FP8_E5M2,
    ff.FP8_E4M3,
    ff.FP6_E3M2,
    ff.FP6_E2M3,
    ff.FP4_E2M1,
)

#: Numbers to jump to, unless others are given, and what they are.
EXAMPLES = {
    "0.1": "one tenth",
    "1/3": "one third",
    "2048+1": "one step too fine for FP16",
    "65519": "just below FP16's limit",
    "65520": "FP16's limit",
    "2^-24": "FP16's smallest number",
    "2^-25": "half of it",
    "nan": "not a number",
}

#: Stands for the code where there is none: NaN in FP6 and FP4.
NO_CODE = -1


@dataclass(frozen=True)
class StoredNumber:
    """What one format makes of the wanted number.

    ``bits`` has a space between the fields. ``below`` and ``above`` are the neighbours of the
    stored ``value``, ``ulp`` is the spacing there, ``relative_error`` is
    ``|value - wanted| / |wanted|``. Where the format has no NaN to store one, ``code`` and ``bits``
    are None and ``kind`` is ``"none"``.
    """

    fmt: str
    code: int | None
    bits: str | None
    kind: str
    value: float
    below: float
    above: float
    ulp: float
    relative_error: float


@dataclass(frozen=True)
class BitExplorerResult:
    """Everything the explorer shows; ``problem`` is a sentence if the input made no sense."""

    wanted: float
    problem: str
    stored: dict[str, StoredNumber]

    def __getitem__(self, fmt: FloatFormat | str) -> StoredNumber:
        return self.stored[fmt if isinstance(fmt, str) else fmt.name]


def explore(
    text: str, fmt: FloatFormat, code: int, formats: Iterable[FloatFormat] = SHOWN_FORMATS
) -> BitExplorerResult:
    """Return what every format makes of the number ``text`` spells.

    ``code`` is the code of ``fmt`` in view. It decides which NaN is shown, and is what remains if
    ``text`` cannot be read.
    """
    problem = _code_problem(fmt, code)
    has_code = not problem and code != NO_CODE
    held = fmt.decode(code).value if has_code else math.nan
    try:
        wanted = read_number(text)
    except ValueError as error:
        wanted, problem = held, str(error)
    stored = {other.name: _store(wanted, other) for other in formats}
    if has_code and math.isnan(held) and math.isnan(wanted):
        stored[fmt.name] = _describe_code(fmt, code, wanted)
    return BitExplorerResult(wanted, problem, stored)


def nearest_code(x: float, fmt: FloatFormat) -> int:
    """Return ``fmt.encode(x)``, or `NO_CODE` for NaN in a format that has none."""
    if math.isnan(x):
        return NO_CODE if fmt.special == "none" else fmt.encode(math.nan)
    return fmt.encode(x)


def relative_error(value: float, wanted: float) -> float:
    """Return ``|value - wanted| / |wanted|``: 0 if equal, NaN for a NaN, infinite if unbounded."""
    if value == wanted:
        return 0.0
    if math.isnan(value) or math.isnan(wanted):
        return math.nan
    if wanted == 0 or math.isinf(wanted):
        return math.inf
    return abs(value - wanted) / abs(wanted)


def _store(wanted: float, fmt: FloatFormat) -> StoredNumber:
    code = nearest_code(wanted, fmt)
    if code == NO_CODE:
        return StoredNumber(fmt.name, None, None, "none", *[math.nan] * 5)
    return _describe_code(fmt, code, wanted)


def _describe_code(fmt: FloatFormat, code: int, wanted: float) -> StoredNumber:
    decoded = fmt.decode(code)
    value = decoded.value
    spacing = (*fmt.neighbours(value), fmt.ulp(value))
    error = relative_error(value, wanted)
    return StoredNumber(fmt.name, code, decoded.bits, decoded.kind, value, *spacing, error)


def _code_problem(fmt: FloatFormat, code: int) -> str:
    last = 2**fmt.bits - 1
    if code == NO_CODE or 0 <= code <= last:
        return ""
    return f"{code} is no code of {_title(fmt)}: its {fmt.bits} bits count from 0 to {last}."


class BitExplorer(LiveFigure):
    """A number in every format at once, with bits to flip.

    Parameters
    ----------
    value : float or str
        The wanted number, or a text that spells one: ``0.1``, ``"2048+1"``, ``"2^-25"``.
    fmt : FloatFormat, str or torch.dtype
        The format to look at closely.
    formats : iterable of FloatFormat, optional
        The formats to show, one a row.
    examples : iterable of str, optional
        Numbers to jump to; a lesson leaves out those that answer its next question.

    Attributes
    ----------
    text, fmt, code
        What the learner changes. Set ``text``, ``fmt`` (a name) or ``code``; the other two follow.
        A text that spells no number leaves the rest as it was and gives a ``result.problem``.

    Raises
    ------
    ValueError
        If ``fmt`` is not among ``formats``, or an example cannot be read.
    """

    _esm = javascript(
        *("numbers", "formats", "number_slider", "number_line", "bit_table", "bit_explorer")
    )
    _css = stylesheet("bit_explorer")

    text = traitlets.Unicode().tag(sync=True)
    fmt = traitlets.Unicode().tag(sync=True)
    code = traitlets.Int().tag(sync=True)
    rows = traitlets.List(read_only=True).tag(sync=True)
    examples = traitlets.List(read_only=True).tag(sync=True)

    def __init__(
        self,
        value: float | str = 0.1,
        fmt: FloatFormat | str = "FP16",
        formats: Iterable[FloatFormat | str] = SHOWN_FORMATS,
        examples: Iterable[str] = tuple(EXAMPLES),
    ) -> None:
        self._formats = {shown.name: shown for shown in map(get_format, formats)}
        text = value if isinstance(value, str) else print_number(value)
        self._check_shown(get_format(fmt).name)
        super().__init__(text=text, fmt=get_format(fmt).name)
        self.set_trait("rows", [_plain_data(shown) for shown in self._formats.values()])
        self.set_trait("examples", [_example(text) for text in examples])
        self.observe(self._follow_number, ["text", "fmt"])
        self.observe(self._follow_code, "code")
        self._follow_number()

    @property
    def result(self) -> BitExplorerResult:
        """What every format makes of the wanted number."""
        return explore(self.text, self._selected, self.code, self._formats.values())

    def describe(self) -> str:
        """Return what the selected format makes of the wanted number, in a sentence."""
        result = self.result
        stored = result[self.fmt]
        what = "has no NaN" if stored.kind == "none" else f"stores {self.text} as {stored.value!r}"
        bits = f", bits {stored.bits}" if stored.bits else ""
        return result.problem or f"{_title(self._selected)} {what}{bits}."

    def picture(self) -> str:
        """Return the bits of every format as SVG."""
        return draw(self.result, list(self._formats.values()), self.text, self.describe())

    @property
    def _selected(self) -> FloatFormat:
        return self._formats[self.fmt]

    @traitlets.validate("fmt")
    def _require_shown(self, proposal: Any) -> str:
        self._check_shown(proposal["value"])
        return proposal["value"]

    def _check_shown(self, name: str) -> None:
        if name not in self._formats:
            raise ValueError(f"fmt is {name!r}; allowed are {', '.join(self._formats)}")

    def _follow_number(self, _: Any = None) -> None:
        """Take the code nearest to the wanted number, unless ``code`` is a NaN already wanted."""
        if is_readable(self.text):
            code = self.result[self.fmt].code
            self.code = NO_CODE if code is None else code

    def _follow_code(self, _: Any = None) -> None:
        """Want exactly the number that ``code`` stands for, unless it is the nearest already."""
        if self.code == NO_CODE or _code_problem(self._selected, self.code):
            return
        if not is_readable(self.text) or self.result[self.fmt].code != self.code:
            self.text = print_number(self._selected.decode(self.code).value)


def _title(fmt: FloatFormat) -> str:
    return fmt.name.replace("_", " ")


def _example(text: str) -> list[str]:
    """Return an example and what it is, after making sure that it can be read."""
    read_number(text)
    return [text, EXAMPLES.get(text, f"the number {text}")]


def _plain_data(fmt: FloatFormat) -> dict[str, Any]:
    """Return what ``formats.js`` needs to know of a format."""
    names = ("name", "exponent_bits", "mantissa_bits", "bias", "special", "overflow", "max_code")
    return {name: getattr(fmt, name) for name in names}


# -- the picture for readers without scripts -----------------------------------------------------

_CELL, _ROW, _BOUNDARY = 15, 26, 100 + 9 * 15  # the exponent ends and the mantissa starts there


def draw(
    result: BitExplorerResult, formats: list[FloatFormat], wanted: str, description: str
) -> str:
    """Return the rows of ``result`` as an SVG document, aligned where the mantissas start."""
    width, height = _BOUNDARY + 23 * _CELL + 140, 64 + _ROW * len(formats)
    parts = [
        svg.text(14, 26, f"{wanted} in {len(formats)} formats", bold=True, size=14),
        svg.text(_BOUNDARY - 6, 48, "sign, exponent", fill="muted", size=11, anchor="end"),
        svg.text(_BOUNDARY + 6, 48, "mantissa", fill="muted", size=11),
        svg.text(width - 14, 48, "stored", fill="muted", size=11, anchor="end"),
    ]
    for i, fmt in enumerate(formats):
        parts += _draw_row(result[fmt], fmt, 54 + _ROW * i, width)
    return svg.drawing(width, height, description, parts)


def _draw_row(stored: StoredNumber, fmt: FloatFormat, top: float, width: float) -> list[str]:
    baseline = top + 17
    parts = [svg.text(14, baseline, _title(fmt), bold=True)]
    bits = stored.bits.replace(" ", "") if stored.bits else "·" * fmt.bits
    fields = "s" + "e" * fmt.exponent_bits + "m" * fmt.mantissa_bits
    roles = {"s": "sign", "e": "exponent", "m": "mantissa"}
    left = _BOUNDARY - (1 + fmt.exponent_bits) * _CELL
    for i, (bit, field) in enumerate(zip(bits, fields, strict=True)):
        parts += _draw_bit(bit, roles[field], left + i * _CELL, top)
    value = "no NaN" if stored.kind == "none" else f"{stored.value:.9g}"
    return [*parts, svg.text(width - 14, baseline, value, anchor="end", code=True)]


def _draw_bit(bit: str, role: str, x: float, y: float) -> list[str]:
    ink = ink_on(colour(role)) if bit == "1" else "ink"
    opacity = 1 if bit == "1" else 0.15
    return [
        svg.rectangle(x + 0.5, y + 2, _CELL - 1, _ROW - 5, role, radius=2, opacity=opacity),
        svg.text(x + _CELL / 2, y + 17, bit, fill=ink, size=12, anchor="middle", code=True),
    ]
