"""Where a number comes from: measured here, recorded on a GPU, published by somebody, or forecast.

The four are worth different things.  A measurement is yours to repeat.  A record is one too, on a
machine that is named.  A published figure is somebody's word, with a setup that may not be told in
full.  A forecast is a calculation.  Side by side in one column they look alike, so here each number
carries its kind: a word, a mark that is fuller the closer the number is to a measurement of yours,
and a border of its own, so that neither colour nor memory is needed to tell them apart.

>>> print(Beside("peak memory", published("RTX 3080", "925 MB", "a forum")))
peak memory
□ published  RTX 3080: 925 MB (a forum)
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from mptutor.palette import colour

#: Kind -> mark, border and colour.
_LOOKS = {
    "measured": ("■", "solid", "green"),
    "recorded": ("▣", "double", "blue"),
    "published": ("□", "dashed", "purple"),
    "forecast": ("◌", "dotted", "orange"),
}


@dataclass(frozen=True)
class Figure:
    """A number with its origin.

    Attributes
    ----------
    kind
        ``"measured"``, ``"recorded"``, ``"published"`` or ``"forecast"``.
    what
        Of what it is, such as ``"A100, AMP FP16"``.
    value
        The number with its unit, as text.
    source
        The machine, the record, the publication, or the error to expect of a forecast.
    """

    kind: str
    what: str
    value: str
    source: str

    def __post_init__(self) -> None:
        if self.kind not in _LOOKS:
            raise ValueError(f"kind: got {self.kind!r}, allowed are {', '.join(_LOOKS)}")
        if not self.source:
            raise ValueError(f"source: got nothing for {self.what!r}, needed is where it is from")

    @property
    def mark(self) -> str:
        """A square that is the fuller, the closer this is to a measurement of one's own."""
        return _LOOKS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.mark} {self.kind:9}  {self.what}: {self.value} ({self.source})"

    def _repr_html_(self) -> str:
        return Beside("", self)._repr_html_()


def measured(what: str, value: str, source: str) -> Figure:
    """Make a figure that was measured here; `source` is the machine."""
    return Figure("measured", what, value, source)


def recorded(what: str, value: str, source: str) -> Figure:
    """Make a figure from a record; `source` is its label."""
    return Figure("recorded", what, value, source)


def published(what: str, value: str, source: str) -> Figure:
    """Make a figure that somebody published; `source` says who and where."""
    return Figure("published", what, value, source)


def forecast(what: str, value: str, source: str) -> Figure:
    """Make a figure from a forecast; `source` is the error to expect of it."""
    return Figure("forecast", what, value, source)


@dataclass(frozen=True, init=False)
class Beside:
    """Figures of the same thing, one below the other, each in the look of its kind."""

    title: str
    figures: tuple[Figure, ...]

    def __init__(self, title: str, *figures: Figure) -> None:
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "figures", figures)

    def __str__(self) -> str:
        return "\n".join([self.title, *map(str, self.figures)])

    def _repr_html_(self) -> str:
        heading = f"<p><b>{escape(self.title)}</b></p>" if self.title else ""
        return heading + "".join(map(_as_html, self.figures))


def framed(kind: str, content: str) -> str:
    """Return HTML that gives ``content``, HTML as well, the mark and the border of a kind."""
    mark, border, hue = _LOOKS[kind]
    return (
        f'<div style="border-left:6px {border} {colour(hue)};padding:2px 0 2px 10px;'
        f'margin:5px 0;text-align:left">{mark} <b>{kind}</b> &nbsp;{content}</div>'
    )


def _as_html(figure: Figure) -> str:
    return framed(
        figure.kind,
        f"{escape(figure.what)}: <b>{escape(figure.value)}</b> "
        f"<small>({escape(figure.source)})</small>",
    )
