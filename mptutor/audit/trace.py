"""The trace: the events of a run in order, ready to be judged, told or stored.

`Trace.to_json` and `Trace.from_json` are inverse to each other, so a trace can be made in one
process (the sandboxed child that runs a student's loop) and judged in another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from mptutor.audit import events as _events
from mptutor.audit import events_forward as _events_forward
from mptutor.audit.events import (
    Backward,
    Clip,
    EnterAutocast,
    Event,
    OptimizerStep,
    Scale,
    ScalerStep,
    SchedulerStep,
    Unscale,
    Update,
    ZeroGrad,
)
from mptutor.audit.events_forward import Values
from mptutor.audit.site import Site

E = TypeVar("E", bound=Event)


@dataclass
class Trace:
    """What was seen of a loop.

    Attributes
    ----------
    events : list of Event
        In the order they happened.
    machine : dict
        What the devices can do, as far as rules need it: ``{"slow": {"float16": "why"}}``.
    unseen : list of str
        What the audit could not look at in this run, in words.
    """

    events: list[Event] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    def of(self, *kinds: type[E]) -> Iterator[E]:
        """Go through the events of these kinds, in order."""
        return (event for event in self.events if isinstance(event, kinds))

    @property
    def steps(self) -> int:
        """Optimizer steps that ended, skipped ones included."""
        return sum(1 for _ in self.of(_events.StepEnded))

    def to_json(self) -> str:
        """Write the trace as JSON text. Infinities and NaN become ``{"float": "inf"}``."""
        records = [{"kind": type(e).__name__, **_plain(_shallow(e))} for e in self.events]
        return json.dumps(
            {"events": records, "machine": self.machine, "unseen": self.unseen}, allow_nan=False
        )

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If the text isn't a trace, or has an event of a kind that doesn't exist.
        """
        stored = json.loads(text)
        if not isinstance(stored, dict) or "events" not in stored:
            raise ValueError("not a trace: expected a JSON object with a list named 'events'")
        return cls([_event(r) for r in stored["events"]], stored["machine"], stored["unseen"])


def story(trace: Trace) -> list[str]:
    """Tell the loop, one line a step, in the words its author used.

    Examples
    --------
    A right loop with clipping reads
    ``zero_grad autocast scale backward unscale_ clip step update``.
    """
    words = [word for word in map(_word, trace.events) if word is not None]
    opening = {"autocast", "scale", "backward", "backward(in autocast)"}
    if "zero_grad" in words and _comes_first("zero_grad", words):
        opening.add("zero_grad")
    lines: list[list[str]] = [[]]
    for word in words:
        if word in opening and any("step" in w for w in lines[-1]):
            lines.append([])
        lines[-1].append(word)
    return [" ".join(_counted(line)) for line in lines if line]


def _comes_first(word: str, words: list[str]) -> bool:
    """Say whether a word is used before the first backward: as the opening of a step."""
    first = next((i for i, w in enumerate(words) if w.startswith("backward")), len(words))
    return word in words[:first]


def _word(event: Event) -> str | None:
    """Name an event as the call the user wrote, or None if they wrote none."""
    match event:
        case ZeroGrad():
            return "zero_grad"
        case EnterAutocast(depth=1):
            return "autocast"
        case Scale():
            return "scale"
        case Backward(autocast=autocast):
            return "backward(in autocast)" if autocast else "backward"
        case Unscale(within_step=False):
            return "unscale_"
        case Clip():
            return "clip"
        case ScalerStep():
            return "step" if event.took_place else "step(skipped)"
        case OptimizerStep(through=None):
            return "optimizer.step"
        case Update():
            return "update"
        case SchedulerStep():
            return "scheduler.step"
    return None


def _counted(words: list[str]) -> Iterator[str]:
    """Fold micro-batches: 'autocast scale backward' four times becomes '(...) x4'."""
    i = 0
    while i < len(words):
        for length in (1, 2, 3, 4):
            unit, times = words[i : i + length], 1
            while words[i + times * length : i + (times + 1) * length] == unit:
                times += 1
            if times > 1 and "backward" in " ".join(unit):
                text = " ".join(unit)
                yield f"({text}) x{times}" if length > 1 else f"{text} x{times}"
                i += times * length
                break
        else:
            yield words[i]
            i += 1


# -- JSON ----------------------------------------------------------------------------------------


def _shallow(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return {"float": repr(value)}
        case Site():
            return {"site": list(value)}
        case Values():
            return {"values": _plain(_shallow(value))}
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case tuple():
            return {"tuple": [_plain(item) for item in value]}
    return value


def _restored(value: Any) -> Any:
    match value:
        case {"float": str(text), **rest} if not rest:
            return float(text)
        case {"site": list(parts), **rest} if not rest:
            return Site(*parts)
        case {"values": dict(parts), **rest} if not rest:
            return Values(**_restored(parts))
        case {"tuple": list(parts), **rest} if not rest:
            return tuple(_restored(part) for part in parts)
        case dict():
            return {key: _restored(item) for key, item in value.items()}
        case list():
            return [_restored(item) for item in value]
    return value


def _event(record: dict[str, Any]) -> Event:
    record = dict(record)
    name = record.pop("kind", "")
    kind = getattr(_events, name, None) or getattr(_events_forward, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise ValueError(f"not a trace: no such kind of event in {sorted(record)}")
    return kind(**_restored(record))
