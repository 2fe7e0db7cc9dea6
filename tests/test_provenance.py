"""Numbers by their kind: each looks different, and none goes without a source."""

import re

import pytest

from mptutor.provenance import Beside, Figure, forecast, measured, published, recorded

pytestmark = pytest.mark.lesson09

KINDS = (measured, recorded, published, forecast)


def test_the_four_kinds_differ_in_word_mark_and_border():
    figures = [make("peak", "1 MB", "somewhere") for make in KINDS]
    assert len({figure.mark for figure in figures}) == len({f.kind for f in figures}) == 4
    page = Beside("memory", *figures)._repr_html_()
    borders = re.findall(r"border-left:6px (\w+)", page)
    assert len(set(borders)) == 4
    for figure in figures:
        assert f"<b>{figure.kind}</b>" in page


def test_a_number_without_a_source_is_refused():
    with pytest.raises(ValueError, match="source: got nothing for 'step'"):
        published("step", "1 ms", "")
    with pytest.raises(ValueError, match="kind: got 'guessed', allowed are measured, recorded"):
        Figure("guessed", "step", "1 ms", "me")


def test_what_is_shown_is_escaped_and_is_text_as_well():
    beside = Beside("a < b", measured("step", "3 ms", "<CPU>"))
    assert "a &lt; b" in beside._repr_html_() and "&lt;CPU&gt;" in beside._repr_html_()
    assert str(beside) == "a < b\n■ measured   step: 3 ms (<CPU>)"
