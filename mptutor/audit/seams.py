"""Where the audit listens: functions wrapped in place, hooks registered, and all of it taken back.

A seam is a function of torch that every loop passes through, however it is written: the methods
of GradScaler and autocast, the autograd engine's entry, the optimizers' hooks. The user's own
objects are never touched. An observer is a generator: what stands before its `yield` runs before
the wrapped function, and what stands after it runs afterwards with the `Outcome`::

    def unscale(self, scaler, optimizer):
        event = self.recorder.record(Unscale, ...)
        outcome = yield
        event.error = outcome.error_text

Three promises are kept here and nowhere else. An error inside an observer is noted, and never
reaches the loop. Observers change nothing: they run without autograd and without
`__torch_function__`. And `undo` takes everything back in reverse order, but leaves alone what
somebody else has wrapped on top of it in the meantime.

What no seam shows is a bound method stored before the audit began (``step = optimizer.step``
calls the hooks all the same, but ``update = scaler.update`` is the function as it was).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Outcome:
    """How the wrapped function ended."""

    result: Any = None
    error: BaseException | None = None

    @property
    def error_text(self) -> str | None:
        """The first line of the error's message, or None."""
        if self.error is None:
            return None
        return str(self.error).strip().split("\n")[0] or type(self.error).__name__


Observer = Callable[..., Generator[None, Outcome, None]]


class Seams:
    """All patches and hooks of one audit."""

    def __init__(self) -> None:
        self.active = False
        self.problems: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._inside = threading.local()

    def around(self, owner: Any, name: str, observer: Observer) -> None:
        """Let `observer` watch the function `owner.name`, a class's own method or a module's."""
        original = vars(owner).get(name)
        if original is None:
            self.problems.append(f"this torch has no {owner.__name__}.{name}: it is not watched")
            return
        wrapper = self._wrapper(original, name, observer, is_method=isinstance(owner, type))
        setattr(owner, name, wrapper)

        def restore() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
            else:
                self.problems.append(
                    f"{name} was wrapped by other code during the audit, whose own wrapper stays "
                    "underneath, switched off"
                )

        self._undo.append(restore)

    def hook(self, register: Callable[..., Any], callback: Callable[..., None], **options) -> None:
        """Register `callback` as a hook that returns None, whatever it does."""
        self._undo.append(register(self.quietly(callback), **options).remove)

    def on_undo(self, restore: Callable[[], None]) -> None:
        """Run `restore` when the seams are undone."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Take everything back, the latest first."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def quietly(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `callback` so that it neither disturbs the loop nor sees the audit's own calls."""

        @functools.wraps(callback)
        def quiet(*args: Any, **kwargs: Any) -> Any:
            # First of all, and alone: this makes the hook vanish from code being compiled.
            if torch.compiler.is_compiling():
                return None
            if not self.active or _capturing():
                return None
            try:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    return callback(*args, **kwargs)
            except Exception as error:
                name = getattr(callback, "__name__", "observer")
                self.problems.append(f"in {name}: {type(error).__name__}: {error}")
            return None

        return quiet

    def _wrapper(self, original: Any, name: str, observer: Observer, is_method: bool) -> Any:
        start = self.quietly(_started(observer))
        finish = self.quietly(_finish)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            key = (name, id(args[0])) if is_method else None
            if key is not None and key in self._running():
                return original(*args, **kwargs)  # super() inside an override is the same call
            self._running().add(key)
            watching = start(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                finish(watching, Outcome(error=error))
                raise
            else:
                finish(watching, Outcome(result=result))
                return result
            finally:
                self._running().discard(key)

        return wrapper

    def _running(self) -> set:
        if not hasattr(self._inside, "calls"):
            self._inside.calls = set()
        return self._inside.calls


def _started(observer: Observer) -> Callable[..., Generator | None]:
    @functools.wraps(observer)
    def start(*args: Any, **kwargs: Any) -> Generator | None:
        watching = observer(*args, **kwargs)
        try:
            next(watching)
        except StopIteration:
            return None
        return watching

    return start


def _finish(watching: Generator | None, outcome: Outcome) -> None:
    if watching is None:
        return
    try:
        watching.send(outcome)
    except StopIteration:
        return


def _capturing() -> bool:
    """Is a CUDA graph being recorded? Nothing may be launched or read then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
