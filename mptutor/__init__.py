"""Mixed precision, in the small: the helper package of the course.

Everything a lesson uses is reachable from here, and nothing is imported before it is used:
``import mptutor as mpt`` costs little more than ``import torch``.

>>> import mptutor as mpt
>>> mpt.FP16.max
65504.0
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Where each public name lives. `mptutor.NAME` imports that module at its first use.
_HOME = {
    "FloatFormat": "formats",
    "get_format": "formats",
    "FP32": "formats",
    "TF32": "formats",
    "FP16": "formats",
    "BF16": "formats",
    "FP8_E4M3": "formats",
    "FP8_E5M2": "formats",
    "FP6_E2M3": "formats",
    "FP6_E3M2": "formats",
    "FP4_E2M1": "formats",
    "quantize": "rounding",
    "ExponentCensus": "census",
    "take_census": "census",
    "take_census_by_layer": "census",
    "StaticLossScaler": "scaling",
    "DynamicLossScaler": "scaling",
    "ScalerState": "scaling",
    "next_state": "scaling",
    "simulate_amp": "simulate",
}

#: Submodules that lessons reach as attributes, `mpt.policy.observe("cuda")`.
_SUBMODULES = (
    "formats",
    "rounding",
    "census",
    "scaling",
    "fp8",
    "policy",
    "tensorcore",
    "hardware",
    "audit",
    "forecast",
    "records",
)

__all__ = [*_HOME, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    """Import the module behind a public name when the name is first asked for."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
