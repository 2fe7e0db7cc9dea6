"""What a rule is, what a finding is, and what the rules have to go on.

A rule is a function that reads the evidence and yields sightings. Its name is its id, which
reports, exercises and tests refer to, and its docstring says what the fault does. The decorator
adds what else is always true of it: how bad it is, the lesson that explains it, the cause in one
sentence and a repair as code::

    @rule(WRONG, lesson=10, cause="Gradients are clipped while ...", repair="scaler.unscale_...")
    def clip_before_unscale(evidence):
        '''The limit meets gradients that are larger by the scale ...'''
        for clip, gradients in evidence.about(Clip):
            if gradients.still_scaled:
                yield seen_at(clip, "limit 1 was applied to ...")

Rules ask torch nothing, so each can be tried on a trace written by hand.

wrong      follows from what was seen, or was measured; it does harm.
suspect    was seen and probably does harm; the finding says what would clear it.
note       true and worth knowing; nothing has to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from mptutor.audit.events import Event
from mptutor.audit.gradients import Gradients, State, optimizers_of, replay
from mptutor.audit.site import Site
from mptutor.audit.trace import Trace

WRONG, SUSPECT, NOTE = "wrong", "suspect", "note"
LEVELS = (WRONG, SUSPECT, NOTE)

#: Within a level, causes come before their consequences, then remarks on the loop, and what is true
#: of the machine alone comes last.
CAUSE, CONSEQUENCE, REMARK, MACHINE = range(4)

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Sighting:
    """One place where a rule found what it looks for; fields that are set override the rule's."""

    event: Event
    seen: str
    level: str | None = None
    site: Site | None = None


@dataclass(frozen=True)
class Rule:
    """A rule and what is always true of it."""

    id: str
    kind: str
    level: str
    lesson: int
    cause: str
    why: str
    repair: str
    order: int
    look: Callable[[Evidence], Iterator[Sighting]]


@dataclass
class Finding:
    """What is wrong with a loop, where, why, and how to mend it.

    Attributes
    ----------
    rule : str
        The stable id of the rule.
    kind : str
        "order", "dtype", "range" or "gain".
    level : str
        "wrong", "suspect" or "note".
    cause : str
        One sentence.
    why : str
        One more, on what it does.
    site : Site
        File, line and code of the user's program.
    seen : str
        What was observed in this run, with its numbers.
    repair : str
        Code.
    lesson : int
        The lesson that explains it.
    times : int
        How often it was seen at this line.
    first_step : int
        The optimizer step in which it was first seen, counted from 0.
    """

    rule: str
    kind: str
    level: str
    cause: str
    why: str
    site: Site
    seen: str
    repair: str
    lesson: int
    times: int = 1
    first_step: int = 0


@dataclass
class Evidence:
    """The trace, and the state of the gradients at every moment of it."""

    trace: Trace
    _indices: dict[int, int] = field(default_factory=dict)

    def of(self, *kinds: type[E]) -> Iterator[E]:
        """Go through the events of these kinds."""
        return self.trace.of(*kinds)

    @cached_property
    def moments(self) -> list[tuple[Event, State]]:
        """Every event with the state just before it."""
        return list(replay(self.trace))

    def about(self, *kinds: type[E]) -> Iterator[tuple[E, Gradients]]:
        """Go through events of these kinds, each with the gradients it is about."""
        for event, state in self.moments:
            if isinstance(event, kinds):
                for optimizer in optimizers_of(event):
                    yield event, state.of(optimizer)

    def index(self, event: Event) -> int:
        """Return the place of an event in the trace."""
        if not self._indices:
            self._indices.update({id(e): i for i, e in enumerate(self.trace.events)})
        return self._indices[id(event)]

    def after(self, event: Event, *kinds: type[E], until: type[Event] | None = None) -> Iterator[E]:
        """Go through the events of these kinds after `event`, up to the next `until`."""
        for later in self.trace.events[self.index(event) + 1 :]:
            if until is not None and isinstance(later, until):
                return
            if isinstance(later, kinds):
                yield later


RULES: dict[str, Rule] = {}


def rule(
    level: str, lesson: int, cause: str, repair: str, order: int = CAUSE
) -> Callable[[Callable], Callable]:
    """Make a rule of a function; `order` places it among the others of its level."""

    def register(look: Callable[[Evidence], Iterator[Sighting]]) -> Callable:
        RULES[look.__name__] = Rule(
            id=look.__name__,
            kind=look.__module__.rpartition("rules_")[2].partition("_")[0],
            level=level,
            lesson=lesson,
            cause=cause,
            why=(look.__doc__ or "").strip(),
            repair=repair,
            order=order,
            look=look,
        )
        return look

    return register


def seen_at(event: Event, seen: str, **instead: str | Site | None) -> Sighting:
    """Say that a rule found what it looks for at `event`."""
    return Sighting(event, seen, **instead)
