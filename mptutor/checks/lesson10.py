"""Lesson 10, *real training loops*: clip, accumulate, two optimizers, resume, mend three faults."""

from __future__ import annotations

from mptutor.checks.lesson10_mixed import MEND_TASK, TWO_TASK
from mptutor.checks.lesson10_resume import RESUME_TASK
from mptutor.checks.lesson10_steps import ACCUMULATE_TASK, CLIP_TASK

TASKS = (CLIP_TASK, ACCUMULATE_TASK, TWO_TASK, RESUME_TASK, MEND_TASK)
