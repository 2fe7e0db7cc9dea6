"""Task 12.3: pick a recipe from measurements, by a rule that leaves nothing to taste."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from mptutor.checks.task import Case, Misunderstanding, Task

Row = dict[str, Any]


def _row(
    asked: str, losses: list[float], step_ms: float, peak_mb: float, ran: str | None = None
) -> Row:
    return {
        "asked": asked,
        "ran": ran or asked,
        "losses": losses,
        "step_ms": step_ms,
        "peak_mb": peak_mb,
    }


def _pick_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    factor = 2.0 ** draw.randint(-6, 6)

    def row(asked: str, losses: list[float], ms: float, mb: float, ran: str | None = None) -> Row:
        return _row(asked, [factor * loss for loss in losses], factor * ms, mb, ran)

    fp32 = row("FP32", [0.50, 0.54, 0.46], 10.0, 900.0)
    amp16 = row("AMP FP16", [0.51, 0.52, 0.47], 6.0, 600.0)
    amp_bf16 = row("AMP BF16", [0.49, 0.55, 0.50], 5.0, 610.0)
    better16 = row("AMP FP16", [0.48, 0.50, 0.47], 6.0, 590.0)
    better_bf16 = row("AMP BF16", [0.47, 0.49, 0.50], 5.0, 610.0)
    naive = row("naive FP16", [0.50, math.nan, 0.49], 3.0, 400.0)
    all_nan = row("naive FP16", [math.nan] * 3, 3.0, 400.0)
    worse = row("pure BF16", [0.58, 0.52, 0.60], 4.0, 450.0)
    fallen = row("AMP FP16", [0.49, 0.50, 0.51], 4.0, 600.0, ran="AMP BF16")
    silent = row("AMP FP16", [0.50, 0.54, 0.46], 8.0, 900.0, ran="FP32")
    hardly = row("AMP BF16", [0.50, 0.51, 0.47], 9.5, 600.0)
    infinite = row("naive FP16", [0.2, math.inf, 0.2], 2.0, 300.0)
    cases = [
        Case("FP32 and both AMPs", ([fp32, amp16, amp_bf16], 1000.0)),
        Case("both AMPs learn a little better", ([fp32, better16, better_bf16], 1000.0)),
        Case("a naive FP16 that is NaN for one seed", ([naive, fp32, amp16], 1000.0)),
        Case("a naive FP16 that is always NaN", ([fp32, all_nan, amp16], 1000.0)),
        Case("a fast one that learns less", ([fp32, worse, amp16], 1000.0)),
        Case("AMP FP16 that ran BF16", ([fp32, fallen], 1000.0)),
        Case("AMP FP16 that ran FP32", ([silent, fp32], 1000.0)),
        Case("BF16 that is hardly faster", ([fp32, hardly], 1000.0)),
        Case("the same, and FP32 does not fit", ([fp32, hardly], 800.0)),
        Case("the fastest does not fit", ([fp32, amp_bf16, amp16], 605.0)),
        Case("nothing fits", ([fp32, amp16, amp_bf16], 500.0)),
        Case("what fits does not learn", ([fp32, worse, infinite], 500.0)),
    ]
    for case in cases:
        draw.shuffle(case.inputs[0])
    return cases


def _pick(
    rows: list[Row],
    memory_mb: float,
    *,
    answer: str = "ran",
    is_sound: Callable[[list[float], list[float]], bool] | None = None,
    looks_at_memory: bool = True,
    gain: float = 0.9,
    keeps_fp32: bool = False,
    key: str = "step_ms",
) -> str | None:
    """Pick as one should, but for what the arguments say."""
    is_sound = is_sound or _is_sound
    fp32 = next(row for row in rows if row["asked"] == "FP32")
    fit = [row for row in rows if not looks_at_memory or row["peak_mb"] <= memory_mb]
    sound = [row for row in fit if is_sound(row["losses"], fp32["losses"])]
    if not sound:
        return None
    best = min(sound, key=lambda row: row[key])
    if (keeps_fp32 or fp32 in sound) and best["step_ms"] > gain * fp32["step_ms"]:
        return "FP32"
    return best[answer]


def _is_sound(losses: list[float], of_fp32: list[float]) -> bool:
    return all(map(math.isfinite, losses)) and fmean(losses) <= max(of_fp32)


def _without_nan(losses: list[float]) -> list[float]:
    return [loss for loss in losses if math.isfinite(loss)]


def _picking(name: str, hint: str, **options: Any) -> Misunderstanding:
    return Misunderstanding(name, hint, partial(_pick, **options), "Then measure")


PICK = Task(
    id="12.3",
    function="pick",
    points=2,
    reference=_pick,
    cases=_pick_cases,
    misunderstandings=(
        _picking(
            "goes by what was asked",
            "You return what was asked for. The measurement is of what ran.",
            answer="asked",
        ),
        _picking(
            "NaN passes",
            "A loss of NaN passes your test. NaN is not greater than anything; ask whether it is "
            "finite.",
            is_sound=lambda losses, of_fp32: not fmean(losses) > max(of_fp32),
        ),
        _picking(
            "NaN left out",
            "You leave seeds out whose loss is not finite, and judge by the rest. One seed that "
            "fails is a recipe that fails.",
            is_sound=lambda losses, of_fp32: (
                bool(_without_nan(losses)) and fmean(_without_nan(losses)) <= max(of_fp32)
            ),
        ),
        _picking(
            "spread ignored",
            "You ask for a mean as low as FP32's. Seeds of FP32 differ by more than that among "
            "themselves.",
            is_sound=lambda losses, of_fp32: (
                all(map(math.isfinite, losses)) and fmean(losses) <= fmean(of_fp32)
            ),
        ),
        _picking(
            "losses ignored",
            "You do not look at the losses, or not in every case. What is fast and does not "
            "learn is no choice.",
            is_sound=lambda losses, of_fp32: True,
        ),
        _picking(
            "memory ignored",
            "You pick something that does not fit into the memory.",
            looks_at_memory=False,
        ),
        _picking(
            "any gain will do",
            "You leave FP32 for a gain of less than a tenth.",
            gain=1.0,
        ),
        _picking(
            "FP32 though it does not fit",
            "You fall back to FP32 where it does not fit. Then there is nothing to gain a tenth "
            "on.",
            keeps_fp32=True,
        ),
        _picking(
            "least memory",
            "You pick what needs least memory. Of those that fit, the fastest was asked for.",
            key="peak_mb",
        ),
    ),
)
