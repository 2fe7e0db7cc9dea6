"""One audit, from entering its block to its findings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from mptutor.audit.judge import judge
from mptutor.audit.machine import describe_machine
from mptutor.audit.report import html_report, json_report, text_report
from mptutor.audit.rules import Finding
from mptutor.audit.trace import Trace
from mptutor.audit.unseen import what_was_not_seen
from mptutor.audit.watch import Watch


class Audit:
    """Watches the training loops that run inside its block, then judges them.

    The loop's numbers are the same with and without it, to the last bit. An exception of the loop
    passes through unchanged; the report then goes to stderr, since nobody may get to ask for it.

    Parameters
    ----------
    layer_steps : int
        Number of first steps in which every layer's output is looked at.
    call_steps : int
        Number of first steps in which every torch call is looked at: the costliest part.
    show : bool
        Print the report on leaving the block.
    as_accelerator : bool
        Treat the CPU as a GPU where that matters: reading values back to Python.

    Attributes
    ----------
    findings : list of Finding
        The worst first. Complete once the block has been left.
    trace : Trace
        What the findings rest on.

    Raises
    ------
    RuntimeError
        On entering, if another audit is running.
    ValueError
        If a number of steps is negative or not an integer.

    Examples
    --------
    >>> import mptutor
    >>> with mptutor.audit() as a:
    ...     pass
    >>> a.findings
    []
    """

    def __init__(
        self,
        layer_steps: int = 20,
        call_steps: int = 5,
        show: bool = False,
        as_accelerator: bool = False,
    ) -> None:
        self._options = layer_steps, call_steps, as_accelerator
        self._watch: Watch | None = None
        self.show = show
        self.trace = Trace()
        self.findings: list[Finding] = []
        Watch(*self._options)  # bad numbers are refused here, not on entering

    def __enter__(self) -> Audit:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self.show or error is not None:
            print(self, file=sys.stderr if error is not None else sys.stdout)

    def start(
        self, after_steps: int | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        """Start to watch, as entering the block does; call `then` after so many steps."""
        watch = Watch(*self._options)
        watch.on_step = lambda step: then() if step == after_steps else None
        watch.install()
        self._watch = watch

    def stop(self) -> None:
        """Take everything back and judge, as leaving the block does. May be called twice."""
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        watch.remove()
        self.trace = watch.trace()
        self.trace.machine = describe_machine(self.trace)
        self.trace.unseen = what_was_not_seen(self.trace, watch.seams.problems)
        self.findings = judge(self.trace)

    def to_json(self) -> str:
        """Return findings and trace as JSON text, as ``mptutor audit --json FILE`` writes it."""
        return json_report(self.trace, self.findings)

    def __str__(self) -> str:
        return text_report(self.trace, self.findings)

    def _repr_html_(self) -> str:
        return html_report(self.trace, self.findings)
