"""Numbers as people type them: ``0.1``, ``2048+1``, ``2^-25``, ``1/3``, ``inf``, ``nan``.

The views read the same texts by the same grammar (``numbers.js``), since they work without a
kernel too; a test holds the two equal.

    sum     = product { ("+" | "-") product }
    product = signed { ("*" | "/") signed }
    signed  = ("+" | "-") signed | power
    power   = number [ ("^" | "**") signed ]         a whole exponent

Everything is computed in FP64, as Python and JavaScript do.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf(?:inity)?|nan|\*\*|[-+*/^])",
    re.IGNORECASE,
)
_LONGEST_TEXT = 80
#: No double survives a larger power, and a loop over it should end.
_LARGEST_POWER = 1100


def read_number(text: str) -> float:
    """Return the number that ``text`` spells.

    Raises
    ------
    ValueError
        If it spells none. The message is a sentence to show to the person who typed it.

    Examples
    --------
    >>> read_number("2048+1"), read_number("-2^-3")
    (2049.0, -0.125)
    """
    try:
        tokens = _tokens(text)
        value = _sum(tokens)
        if tokens:
            raise ValueError(tokens[-1])
    except (ValueError, IndexError, ZeroDivisionError):
        raise ValueError(_cannot_read(text)) from None
    return value


def is_readable(text: str) -> bool:
    """Return whether `read_number` can read ``text``."""
    try:
        read_number(text)
    except ValueError:
        return False
    return True


def print_number(x: float) -> str:
    """Return the shortest text that `read_number` takes back to ``x``; whole numbers plain."""
    return repr(float(x)).removesuffix(".0")


def _cannot_read(text: str) -> str:
    advice = "Type a number such as 0.1, 2048+1 or 2^-25."
    return f"“{text.strip()}” is no number I can read. {advice}" if text.strip() else advice


def _tokens(text: str) -> list[str]:
    """Split into tokens, the first one last, so that reading is `list.pop`."""
    text = text.replace("−", "-").replace("×", "*").rstrip()
    if len(text) > _LONGEST_TEXT:
        raise ValueError("too long")
    tokens, end = [], 0
    while end < len(text):
        token = _TOKEN.match(text, end)
        if token is None:
            raise ValueError(text[end:])
        tokens.append(token[1].lower())
        end = token.end()
    return tokens[::-1]


def _sum(tokens: list[str]) -> float:
    total = _product(tokens)
    while tokens and tokens[-1] in ("+", "-"):
        total = total + _product(tokens) if tokens.pop() == "+" else total - _product(tokens)
    return total


def _product(tokens: list[str]) -> float:
    product = _signed(tokens)
    while tokens and tokens[-1] in ("*", "/"):
        product = product * _signed(tokens) if tokens.pop() == "*" else product / _signed(tokens)
    return product


def _signed(tokens: list[str]) -> float:
    if tokens[-1] in ("+", "-"):
        return -_signed(tokens) if tokens.pop() == "-" else _signed(tokens)
    base = float(tokens.pop())
    if tokens and tokens[-1] in ("^", "**"):
        tokens.pop()
        return _power(base, _signed(tokens))
    return base


def _power(base: float, exponent: float) -> float:
    if not exponent.is_integer() or abs(exponent) > _LARGEST_POWER:
        raise ValueError(f"exponent {exponent}")
    power = 1.0
    for _ in range(int(abs(exponent))):
        power *= base
    return 1.0 / power if exponent < 0 else power
