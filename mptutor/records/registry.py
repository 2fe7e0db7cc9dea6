"""What `mptutor record` runs: one line for each experiment, with the options of its GPU size.

An experiment joins by a line in `EXPERIMENTS`; one that is not to be recorded joins by a line in
`NOT_RECORDED`, with the reason.  A test sees that each ``run_x`` of `mptutor.experiments` is in one
of the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, get_type_hints

import torch

from mptutor.experiments.result import Result

_HOME = "mptutor.experiments"

_FIVE = (0, 1, 2, 3, 4)
_POWERS_OF_TWO = tuple(2**n for n in range(5, 14))
_SETTINGS = (
    ("small_cnn", 128),
    ("small_cnn", 4096),
    ("mlp", 128),
    ("mlp", 32768),
    ("wide_mlp", 64),
    ("wide_mlp", 8192),
)
_SCALERS = {"torch.amp.GradScaler": lambda: torch.amp.GradScaler("cuda")}


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
    Experiment("speed", f"{_HOME}.speed_sweep:run_speed_sweep", {"sizes": _POWERS_OF_TWO}),
    Experiment("memory", f"{_HOME}.memory_sweep:run_memory_sweep", {"settings": _SETTINGS}),
    Experiment("dtypes", f"{_HOME}.dtype_trace:run_dtype_trace"),
    Experiment("gradient census", f"{_HOME}.gradient_census:run_gradient_census"),
    Experiment("scalers", f"{_HOME}.scaler_traces:run_scaler_traces", {"scalers": _SCALERS}),
    Experiment("scales", f"{_HOME}.scale_sweep:run_scale_sweep"),
    Experiment("training", f"{_HOME}.training:run_training", {"seeds": _FIVE, "epochs": 10}),
    Experiment("vae", f"{_HOME}.vae:run_vae", {"seeds": _FIVE}),
    Experiment("fine tuning", f"{_HOME}.fine_tuning:run_fine_tuning", {"seeds": _FIVE}),
    Experiment("deep sigmoid", f"{_HOME}.deep_sigmoid:run_deep_sigmoid", {"seeds": _FIVE}),
    Experiment("loop patterns", f"{_HOME}.loop_patterns:run_loop_patterns", {"seeds": _FIVE}),
    Experiment("frameworks", f"{_HOME}.framework_recipes:run_framework_recipes"),
    Experiment(
        "optimizer states", f"{_HOME}.optimizer_states:run_optimizer_states", {"seeds": _FIVE}
    ),
)

#: Functions that are not recorded, and why.
NOT_RECORDED: dict[str, str] = {
    f"{_HOME}.accumulation:run_running_sums": "gives the same numbers on every machine",
    f"{_HOME}.accumulation:run_summations": "gives the same numbers on every machine",
    f"{_HOME}.fp8_scaling:run_fp8_errors": "rounds alike on every machine",
    f"{_HOME}.fp8_scaling:run_delayed_scaling": "rounds alike on every machine",
    f"{_HOME}.fp8_training:run_fp8_training": "emulates FP8, on a GPU too",
    f"{_HOME}.gradient_accumulation:run_gradient_accumulation": "rounds alike on every machine",
    f"{_HOME}.distributed:run_distributed": "two processes on the CPU, whatever the machine",
    f"{_HOME}.training:run_taste": "is run_training in a smaller size",
}
