"""Text that others wrote, made safe to show.

A student chooses file names, error messages and answers. In a terminal they could move the cursor,
in a spreadsheet start a formula, in a page run a script.
"""

from __future__ import annotations

import html
import re
import unicodedata

_BACKTICKS = re.compile(r"`([^`]*)`")
#: Characters a spreadsheet takes for the start of a formula.
_FORMULA = tuple("=+-@\t\r")


def for_terminal(text: str) -> str:
    """Return ``text`` without control characters and what changes the direction of writing."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "�" for c in text)


def for_csv(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it and does not run it."""
    text = for_terminal(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def for_html(text: str) -> str:
    """Return ``text`` as the content or the attribute of an HTML element."""
    return html.escape("".join(c if unicodedata.category(c) != "Cs" else "�" for c in text))


def prose(text: str) -> str:
    """Return a sentence for HTML, with what stands in backticks set as code."""
    return _BACKTICKS.sub(r"<code>\1</code>", for_html(text))
