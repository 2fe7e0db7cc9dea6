"""Figures you can take hold of: one widget is ``name.py`` (its model) and ``name.js`` (its view).

`base` says how a widget is made. Names load when first used, since ipywidgets is slow to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Where each widget lives.
_HOME = {
    "AccumulationExplorer": "accumulation_explorer",
    "BitExplorer": "bit_explorer",
    "Fp8Explorer": "fp8_explorer",
    "PolicyExplorer": "policy_explorer",
    "ForecastExplorer": "forecast_explorer",
    "ScaleExplorer": "scale_explorer",
    "ScalerSimulator": "scaler_simulator",
    "StepDebugger": "step_debugger",
    "TrainingRace": "training_race",
    "UpdateGrid": "update_grid",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Import the module behind a widget when the widget is first asked for."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
