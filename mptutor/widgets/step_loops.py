"""The training loops of the step debugger: the right one, and whatever one change makes of it.

A loop is a sequence of calls, each one line of code. The line that is shown is the line that is
run. `LOOPS` holds the right order, the mistakes people make (`MISTAKES`), and every loop in which
one call after the forward pass has been moved, doubled or left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Call:
    """One line of a training loop: what it is called, its code, and whether autocast is on."""

    name: str
    code: str
    autocast: bool = False


@dataclass(frozen=True)
class Loop:
    """The calls of one training step, in order, and in a few words what is special about it."""

    name: str
    calls: tuple[Call, ...]


MAX_NORM = 1.0

ZERO_GRAD = Call("zero_grad", "optimizer.zero_grad()")
FORWARD = Call("forward", "output = model(x)", autocast=True)
LOSS = Call("loss", "loss = loss_fn(output, y)", autocast=True)
SCALE = Call("scale", "scaled = scaler.scale(loss)")
BACKWARD = Call("backward", "scaled.backward()")
UNSCALE = Call("unscale_", "scaler.unscale_(optimizer)")
CLIP = Call("clip", f"clip_grad_norm_(model.parameters(), {MAX_NORM})")
STEP = Call("step", "scaler.step(optimizer)")
UPDATE = Call("update", "scaler.update()")

PLAIN_STEP = Call("step", "optimizer.step()")
PLAIN_BACKWARD = Call("backward", "loss.backward()")
HALF = Call("half", "model.half()")

RIGHT = Loop(
    "right order", (ZERO_GRAD, FORWARD, LOSS, SCALE, BACKWARD, UNSCALE, CLIP, STEP, UPDATE)
)


def _without(*gone: Call) -> tuple[Call, ...]:
    return tuple(call for call in RIGHT.calls if call not in gone)


def _with(call: Call, other: Call) -> tuple[Call, ...]:
    return tuple(other if each is call else each for each in RIGHT.calls)


def _moved(calls: tuple[Call, ...], start: int, end: int) -> tuple[Call, ...]:
    rest = calls[:start] + calls[start + 1 :]
    return (*rest[:end], calls[start], *rest[end:])


def _index(call: Call) -> int:
    return RIGHT.calls.index(call)


#: What goes wrong in real loops, and what does not.
MISTAKES = (
    Loop("clip before unscale_", _moved(RIGHT.calls, _index(CLIP), _index(UNSCALE))),
    Loop("no unscale_", _without(UNSCALE)),
    Loop("unscale_ twice", _moved((*RIGHT.calls, UNSCALE), len(RIGHT.calls), _index(CLIP))),
    Loop("optimizer.step()", _with(STEP, PLAIN_STEP)),
    Loop(
        "optimizer.step(), no unscale_",
        tuple(PLAIN_STEP if call is STEP else call for call in _without(UNSCALE, CLIP)),
    ),
    Loop("no update", _without(UPDATE)),
    Loop("update before step", _moved(RIGHT.calls, _index(UPDATE), _index(STEP))),
    Loop("no zero_grad", _without(ZERO_GRAD)),
    Loop("zero_grad after backward", _moved(RIGHT.calls, _index(ZERO_GRAD), _index(BACKWARD))),
    Loop(
        "loss not scaled",
        tuple(PLAIN_BACKWARD if call is BACKWARD else call for call in _without(SCALE)),
    ),
    Loop("backward in autocast", _with(BACKWARD, replace(BACKWARD, autocast=True))),
    Loop(
        "no autocast",
        tuple(replace(call, autocast=False) for call in RIGHT.calls),
    ),
    Loop("model.half()", (HALF, *RIGHT.calls)),
    Loop("neither unscale_ nor clip", _without(UNSCALE, CLIP)),
)


def _changes() -> Iterator[Loop]:
    """Yield every loop that one move, one repetition or one omission makes of the right one.

    Forward pass, loss and scaling stay where they are: before them there is nothing to work on.
    """
    calls = RIGHT.calls
    first = _index(BACKWARD)
    for start, call in enumerate(calls):
        if call not in (FORWARD, LOSS, SCALE):
            yield Loop(f"no {call.name}", _without(call))
            yield Loop(f"{call.name} twice", _moved((*calls, call), len(calls), start))
            for end in range(start - 1, first - 1, -1):
                yield Loop(f"{call.name} before {calls[end].name}", _moved(calls, start, end))
            for end in range(start + 1, len(calls)):
                yield Loop(f"{call.name} after {calls[end].name}", _moved(calls, start, end))


def _distinct(loops: Iterator[Loop]) -> dict[str, Loop]:
    """Return the loops by name; of loops with the same calls the first."""
    by_calls: dict[tuple[Call, ...], Loop] = {}
    for loop in loops:
        by_calls.setdefault(loop.calls, loop)
    return {loop.name: loop for loop in by_calls.values()}


#: Every loop the debugger knows, by name.
LOOPS = _distinct(iter((RIGHT, *MISTAKES, *_changes())))
