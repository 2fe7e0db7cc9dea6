"""What a training race looks like: its curves as SVG, and where each recipe stands as a table.

Pure functions from what the turns told so far to HTML, for a widget that has no script of its own.
Colours are CSS variables, so the page's theme can change them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from mptutor.experiments.race import Turn
from mptutor.experiments.recipes import RECIPES
from mptutor.experiments.result import show
from mptutor.plots.training import dash_of

_WIDTH, _HEIGHT = 640, 242
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 630, 26, 208
_DASHES = {"--": "7 4", "-.": "9 3 2 3", ":": "2 3"}


@dataclass
class Lane:
    """One run of a race: the losses so far, and the last turn that told of it."""

    recipe: str
    seed: int
    losses: list[float] = field(default_factory=list)
    last: Turn | None = None
    accuracy: float | None = None

    def take(self, turn: Turn) -> None:
        """Add what a turn tells."""
        self.losses += turn.losses
        self.last = turn
        if turn.epoch is not None:
            self.accuracy = turn.epoch.accuracy

    @property
    def diverged_at_step(self) -> int | None:
        """The step, counted from 1, from which on the loss is infinite or NaN, if there is one."""
        finite = max((i for i, loss in enumerate(self.losses, 1) if math.isfinite(loss)), default=0)
        return finite + 1 if finite < len(self.losses) else None


def standings(lanes: Sequence[Lane]) -> str:
    """Return a table with a row for each recipe: how far it is with its latest seed, and how well.

    The losses and the accuracy are those of the latest seed, the skips those of all.
    """
    rows = []
    for recipe in dict.fromkeys(lane.recipe for lane in lanes):
        mine = [lane for lane in lanes if lane.recipe == recipe]
        rows.append(_row(mine))
    headings = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("recipe", "seed", "step", "loss", "accuracy", "scale", "skips")
    )
    return f'<table class="mpt-standings"><tr>{headings}</tr>{"".join(rows)}</table>'


def _row(lanes: Sequence[Lane]) -> str:
    lane = lanes[-1]
    turn = lane.last
    ended = lane.diverged_at_step
    scaled = lane.recipe not in RECIPES or RECIPES[lane.recipe].scaler
    cells = [
        str(lane.seed),
        f"{turn.step} of {turn.steps}" if turn else show(None),
        f"NaN at step {ended}" if ended else show(lane.losses[-1] if lane.losses else None),
        show(lane.accuracy),
        f"2<sup>{math.log2(turn.scale):g}</sup>" if turn and scaled and turn.scale else show(None),
        str(sum(other.last.skips for other in lanes if other.last)) if scaled else show(None),
    ]
    name = f'<th scope="row">{_key(lane)} {escape(lane.recipe)}</th>'
    return f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _key(lane: Lane) -> str:
    line = _line(lane, "M0 4H34", 2)
    return f'<svg class="mpt-key-line" viewBox="0 0 34 8" aria-hidden="true">{line}</svg>'


def curves(lanes: Sequence[Lane], steps: int) -> str:
    """Return the loss of every lane by step as SVG, with ``steps`` as the width of the axis."""
    ceiling = _ceiling(loss for lane in lanes for loss in lane.losses)
    place = _Place(max(steps, 1), ceiling)
    said = "; ".join(_describe(lane) for lane in lanes if lane.losses) or "no step has been taken"
    order = [*dict.fromkeys(lane.recipe for lane in lanes)]
    parts = _axes(place)
    for lane in lanes:
        # Each line narrower than those below it, so that lines that agree are all seen.
        width = 1.5 + 4 * (1 - order.index(lane.recipe) / len(order)) ** 2
        is_first = lane is next(other for other in lanes if other.recipe == lane.recipe)
        parts.append(_draw(lane, place, width, is_noted=is_first))
    return (
        f'<svg class="mpt-curves" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Training loss by step. {escape(said)}.">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True)
class _Place:
    """Where steps and losses lie."""

    steps: int
    ceiling: float

    def x(self, step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / self.steps

    def y(self, loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(loss / self.ceiling, 1.0)


def _ceiling(losses: Iterable[float]) -> float:
    """Return a round number that the losses are below."""
    highest = max((loss for loss in losses if math.isfinite(loss)), default=2.5)
    unit = 10.0 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    return next(unit * n for n in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10) if unit * n >= highest)


def _axes(place: _Place) -> list[str]:
    parts = []
    for n in range(6):
        loss = place.ceiling * n / 5
        y = place.y(loss)
        parts.append(f'<path class="mpt-grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>')
    for n in range(5):
        step = round(place.steps * n / 4)
        x = place.x(step)
        anchor = "end" if n == 4 else "middle"  # the last one has the edge beside it
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="{anchor}">{step}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 3}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{_LEFT}" y="12">training loss</text>')
    return parts


def _draw(lane: Lane, place: _Place, width: float, is_noted: bool) -> str:
    points = [
        (place.x(step), place.y(loss))
        for step, loss in enumerate(lane.losses, 1)
        if math.isfinite(loss)
    ]
    if not points:
        return ""
    line = _line(lane, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), width)
    if not lane.diverged_at_step:
        return line
    x, y = points[-1]
    cross = _line(lane, f"M{x - 5:.1f} {y - 5:.1f}l10 10m0-10l-10 10", 2, dashed=False)
    note = f'<text x="{x + 10:.1f}" y="{y - 4:.1f}">NaN at step {lane.diverged_at_step}</text>'
    return line + cross + (note if is_noted else "")


def _line(lane: Lane, path: str, width: float, dashed: bool = True) -> str:
    fmt = RECIPES[lane.recipe].fmt.name.lower() if lane.recipe in RECIPES else "green"
    dash = _DASHES.get(dash_of(lane.recipe)) if dashed else None
    drawn = f' stroke-dasharray="{dash}"' if dash else ""
    style = f"stroke: var(--mpt-{fmt}); stroke-width: {width:.1f}"
    return f'<path class="mpt-lane" style="{style}"{drawn} d="{path}"/>'


def _describe(lane: Lane) -> str:
    if ended := lane.diverged_at_step:
        return f"{lane.recipe}, seed {lane.seed}: NaN at step {ended}"
    return f"{lane.recipe}, seed {lane.seed}: {show(lane.losses[-1])} at step {len(lane.losses)}"
