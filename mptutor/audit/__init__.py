"""Look over a training loop: what is wrong with it, where, why, and how to mend it.

::

    with mptutor.audit() as a:
        train(model, loader)      # your loop, as it is
    a                             # in a notebook; print(a) elsewhere
    a.findings                    # the same as objects

or, for a script, ``mptutor audit train.py --its --own arguments``.

In between the audit *watches* (`watch.py`: functions of torch that every loop passes through are
wrapped, and taken back at the end), writes down a *trace* (`events.py`, `trace.py`: numbers and
names in order, no tensors) and lets *rules* judge it (`rules_*.py`: pure functions of the trace).
The usual debugging helpers look for the first inf or NaN in a forward hook. Most faults of mixed
precision never show there: they are errors of order, or of dtype, in a loop whose every number is
finite.

This module can be called: ``mptutor.audit()`` is ``mptutor.audit.Audit()``. A function of that
name in `mptutor` would be lost as soon as anybody imports a submodule of this package.
"""

from __future__ import annotations

import sys
from types import ModuleType

from mptutor.audit.judge import judge
from mptutor.audit.rules import LEVELS, NOTE, RULES, SUSPECT, WRONG, Finding
from mptutor.audit.session import Audit
from mptutor.audit.trace import Trace, story
from mptutor.audit.watch import Watch

__all__ = [
    "LEVELS",
    "NOTE",
    "RULES",
    "SUSPECT",
    "WRONG",
    "Audit",
    "Finding",
    "Trace",
    "Watch",
    "judge",
    "story",
]


class _CallableModule(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> Audit:
        """Make an `Audit`; see there."""
        return Audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
