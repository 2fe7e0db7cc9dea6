"""Time several contenders side by side, fairly.

A shared machine speeds up and slows down from one second to the next, so two timings taken one
after the other say little. Here every contender runs once a round, round after round, and only
ratios between medians of the same run are reported.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int = 9,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Run every contender once a round and return its seconds, round by round.

    The default clock is the process's CPU time, which other programs disturb least. The first
    round warms up and is thrown away.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            elapsed = clock() - start
            if round_number > 0:
                seconds[name].append(elapsed)
    return seconds


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median seconds of each contender."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(rows: list[dict[str, object]]) -> str:
    """Lay out rows (dicts with the same keys) as a plain text table."""
    header = list(rows[0])
    cells = [header, *[[_show(row[key]) for key in header] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def _show(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def machine() -> dict[str, str]:
    """Name what the figures were measured on."""
    import torch

    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": os.environ["OMP_NUM_THREADS"],
    }


def report(title: str, rows: list[dict[str, object]], argv: list[str] | None = None) -> None:
    """Print the table, and with ``--json FILE`` write it to FILE as well."""
    argv = sys.argv[1:] if argv is None else argv
    print(title)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print(table(rows))
    if "--json" in argv:
        target = Path(argv[argv.index("--json") + 1])
        target.write_text(json.dumps({"title": title, **machine(), "rows": rows}, indent=1))
