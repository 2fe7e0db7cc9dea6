"""Lesson 11, *My loss is NaN. Now what?*: mend six loops and name their causes."""

from __future__ import annotations

from mptutor.checks.lesson11_causes import NAMES
from mptutor.checks.lesson11_dtype import C, E, F
from mptutor.checks.lesson11_order import A, D
from mptutor.checks.lesson11_range import B

TASKS = (A, B, C, D, E, F, NAMES)
