"""What `mptutor record` runs: one line for each experiment, with the options of its GPU size.

An experiment joins by a line in `EXPERIMENTS`; one whose numbers are the same on every machine is
not recorded and joins by a line in `SAME_EVERYWHERE` instead.  A test sees that each ``run_x``
of `mptutor.experiments` is in one of the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_type_hints

from mptutor.experiments.result import Result


@dataclass(frozen=True)
class Experiment:
    """An experiment to record.

    Attributes
    ----------
    name
        What the record and the lessons call it.
    path
        Where it is, ``"module:function"``; imported when it is run.
    options
        Keywords that give it its GPU size.  `device` and, where the function takes it, `stop` are
        added.
    """

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Result]:
        """Import the function."""
        module, _, function = self.path.partition(":")
        return getattr(import_module(module), function)

    def run(self, device: object, stop: Callable[[], bool]) -> Result:
        """Run it on a device, until `stop` says True if it can be stopped."""
        function = self.load()
        taken = inspect.signature(function).parameters
        given = {"device": device, "stop": stop}
        return function(**self.options, **{k: v for k, v in given.items() if k in taken})

    def read(self, plain: dict[str, Any]) -> Result:
        """Read a recorded result as what the function returns."""
        return get_type_hints(self.load())["return"].from_plain(plain)


#: In the order in which they are run.
EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "training", "mptutor.experiments.training:run_training", {"seeds": range(5), "epochs": 10}
    ),
    Experiment("vae", "mptutor.experiments.vae:run_vae", {"seeds": range(5)}),
    Experiment(
        "fine tuning", "mptutor.experiments.fine_tuning:run_fine_tuning", {"seeds": range(5)}
    ),
    Experiment(
        "deep sigmoid", "mptutor.experiments.deep_sigmoid:run_deep_sigmoid", {"seeds": range(5)}
    ),
)

#: Functions whose results do not depend on the machine, or that a lesson gives its own arguments.
SAME_EVERYWHERE: frozenset[str] = frozenset(
    {
        "mptutor.experiments.accumulation:run_running_sums",
        "mptutor.experiments.accumulation:run_summations",
        "mptutor.experiments.scaler_traces:run_scaler_traces",
        "mptutor.experiments.training:run_taste",  # run_training, smaller
    }
)
