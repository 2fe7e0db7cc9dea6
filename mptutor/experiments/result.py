"""What an experiment returns: a frozen record of plain values.

A result outlives the run that made it.  It is drawn, asserted, shown in a notebook, written into a
record on a machine with a GPU and read on one without.  So it holds no tensors and no models, only
numbers, strings, booleans, None, tuples and dicts of these, and other frozen dataclasses made the
same way.  Units are in the names: ``step_ms``, ``peak_bytes``.

`Result` gives such a dataclass three things: strict JSON that reads back equal, a small table for
notebooks, and the same table as text.  They show what `headline` and `table` return.

JSON has no word for infinity and NaN, and Python's habit of writing them bare breaks every other
reader.  They are written as the strings ``"Infinity"``, ``"-Infinity"`` and ``"NaN"`` and read back
wherever the dataclass declares a float.

>>> @dataclass(frozen=True)
... class CoinResult(Result):
...     tosses: int
...     share_heads: float
>>> result = CoinResult(tosses=10, share_heads=0.4)
>>> CoinResult.from_json(result.to_json()) == result
True
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from html import escape
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R", bound="Result")

#: A cell of a table: numbers are set to the right, texts to the left.
Cell = str | int | float | bool | None

_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


@dataclass(frozen=True)
class Result:
    """Base of all results; derive with ``@dataclass(frozen=True)``."""

    @property
    def headline(self) -> str:
        """A line to stand above the table: what was run, and where.  Empty unless overridden."""
        return ""

    def table(self) -> list[dict[str, Cell]]:
        """Return the rows to show, each a dict from heading to cell, all with the same headings.

        This one has a row for every field that is a single value.  A result whose substance is a
        tuple of runs overrides it with a row for each.
        """
        return [
            {"": field.name, "value": getattr(self, field.name)}
            for field in fields(self)
            if isinstance(getattr(self, field.name), Cell)
        ]

    def to_plain(self) -> dict[str, Any]:
        """Return the result as dicts, lists, strings and numbers, which JSON can hold."""
        return {"result": type(self).__name__, **_to_plain(self, type(self).__name__)}

    @classmethod
    def from_plain(cls: type[R], plain: dict[str, Any]) -> R:
        """Read what `to_plain` returned.

        Raises
        ------
        ValueError
            If it is another class's result, or its fields are not this class's.
        """
        plain = dict(plain)
        kind = plain.pop("result", None)
        if kind != cls.__name__:
            raise ValueError(f"plain: is a {kind}, but {cls.__name__} was asked to read it")
        return _from_plain(plain, cls, cls.__name__)

    def to_json(self, indent: int | None = 1) -> str:
        """Return the result as strict JSON."""
        return json.dumps(self.to_plain(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """Read what `to_json` wrote."""
        return cls.from_plain(json.loads(text))

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.headline, text_table(self.table())]))

    def _repr_html_(self) -> str:
        headline = f"<p>{escape(self.headline)}</p>" if self.headline else ""
        return headline + html_table(self.table())


def show(cell: Cell) -> str:
    """Write a cell the way all tables do.

    Four significant digits; whole numbers, as scales are, in full up to a billion; a dash for None.

    >>> show(3.14159), show(65536.0), show(1e-7), show(None)
    ('3.142', '65,536', '1e-07', '–')
    """
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if math.isnan(cell):
            return "NaN"
        return f"{cell:,.0f}" if cell.is_integer() and abs(cell) < 1e9 else f"{cell:.4g}"
    return cell


def text_table(rows: list[dict[str, Cell]]) -> str:
    """Lay out rows as text, numbers to the right."""
    if not rows:
        return "(nothing to show)"
    columns = []
    for heading in rows[0]:
        cells = [row[heading] for row in rows]
        shown = [heading, *map(show, cells)]
        width = max(map(len, shown))
        columns.append([s.rjust(width) if _is_number(cells) else s.ljust(width) for s in shown])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def html_table(rows: list[dict[str, Cell]]) -> str:
    """Lay out rows as an HTML table, in the page's own colours."""
    if not rows:
        return "<p>(nothing to show)</p>"
    sides = {h: "right" if _is_number([row[h] for row in rows]) else "left" for h in rows[0]}
    head = "".join(f"<th style='text-align:{sides[h]}'>{escape(h)}</th>" for h in rows[0])
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:{sides[h]}'>{escape(show(row[h]))}</td>" for h in rows[0])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(cells: list[Cell]) -> bool:
    return not any(isinstance(cell, (str, bool)) for cell in cells)


def _to_plain(value: Any, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _to_plain(getattr(value, field.name), f"{where}.{field.name}")
            for field in fields(value)
        }
    if isinstance(value, tuple):
        return [_to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where}: the keys of a dict must be strings, got {list(value)}")
        return {key: _to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name_of(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    raise TypeError(
        f"{where}: a result holds numbers, strings, booleans, None, tuples, dicts and frozen "
        f"dataclasses, got {type(value).__name__}"
    )


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _from_plain(plain: Any, declared: Any, where: str) -> Any:
    """Read a plain value as the type that the dataclass declares for it."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return _from_plain(plain, _choose(plain, arguments, where), where)
    if is_dataclass(declared):
        return _fields_from_plain(plain, declared, where)
    if origin is tuple:
        return _tuple_from_plain(plain, arguments, where)
    if origin is dict:
        return {k: _from_plain(v, arguments[1], f"{where}[{k!r}]") for k, v in plain.items()}
    if declared is float:
        return _NOT_FINITE[plain] if isinstance(plain, str) else float(plain)
    return plain


def _fields_from_plain(plain: dict[str, Any], declared: Any, where: str) -> Any:
    hints = _hints(declared)
    if set(plain) != set(hints):
        raise ValueError(
            f"{where}: has the fields {sorted(plain)}, {declared.__name__} has {sorted(hints)}"
        )
    return declared(
        **{name: _from_plain(plain[name], hints[name], f"{where}.{name}") for name in hints}
    )


@cache
def _hints(declared: type) -> dict[str, Any]:
    hints = get_type_hints(declared)
    return {field.name: hints[field.name] for field in fields(declared)}


def _tuple_from_plain(plain: list[Any], arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(plain)
    return tuple(
        _from_plain(item, kind, f"{where}[{i}]")
        for i, (item, kind) in enumerate(zip(plain, arguments, strict=True))
    )


def _choose(plain: Any, options: tuple[Any, ...], where: str) -> Any:
    """Return the member of a union that a plain value belongs to."""
    if plain is None:
        return type(None)
    wanted = {list: tuple, dict: None, bool: bool, int: int, float: float, str: str}[type(plain)]
    for option in options:
        if (get_origin(option) or option) is wanted:
            return option
    for option in options:  # a string or an int may also stand for a float, a dict for a dataclass
        if option is float and not isinstance(plain, (dict, list)):
            return option
        if isinstance(plain, dict) and (is_dataclass(option) or get_origin(option) is dict):
            return option
    raise ValueError(f"{where}: got {plain!r}, allowed is {' | '.join(map(str, options))}")
