"""Notebooks of exercise 01 for the tests: solved, spoilt, empty."""

from pathlib import Path

from mptutor.grading.limits import MIB, Limits

LIMITS = Limits(
    cell_s=1.0,
    grace_s=0.5,
    submission_s=8.0,
    memory_bytes=256 * MIB,
    reply_bytes=2 * MIB,
    processes=12,
)
SEED = 20261129

SETUP = "import math\n\nfrom mptutor.checks import check\n"
SOLVED = {
    "01-1": """def decode_fp16(code):
    sign = -1.0 if code >> 15 else 1.0
    exponent, mantissa = code >> 10 & 31, code & 1023
    if exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, -24)
    return sign * math.ldexp(1024 + mantissa, exponent - 25)
""",
    "01-2": """def ulp_fp16(x):
    return 2.0 ** (max(math.frexp(x)[1] - 1, -14) - 10) if x else 2.0**-24
""",
    "01-3": """def range_table(exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-mantissa_bits
    return {"max": (2 - eps) * 2.0**bias, "smallest_normal": 2.0 ** (1 - bias),
            "smallest_subnormal": 2.0 ** (1 - bias - mantissa_bits), "eps": eps}
""",
}
CHECKS = {"01-1": "decode_fp16", "01-2": "ulp_fp16", "01-3": "range_table"}
POINTS = {"01.1": 3, "01.2": 2, "01.3": 2}


def code_cell(source, grade_id=None, **marks):
    metadata = (
        {"nbgrader": {"grade_id": grade_id, "schema_version": 3, **marks}} if grade_id else {}
    )
    return {
        "cell_type": "code",
        "id": f"c{abs(hash((grade_id, source))) % 10**8}",
        "metadata": metadata,
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def notebook(cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def exercise(**changed):
    """Exercise 01 solved; ``s1``, ``s2``, ``s3`` replace a solution, ``first`` a cell before."""
    cells = [code_cell(SETUP)]
    if "first" in changed:
        cells.append(code_cell(changed["first"]))
    for key, solved in SOLVED.items():
        task = f"01.{key[-1]}"
        source = changed.get(f"s{key[-1]}", solved)
        cells.append(code_cell(source, f"solution-{key}", grade=False, solution=True, locked=False))
        cells.append(
            code_cell(
                f'check("{task}", {CHECKS[key]})',
                f"check-{key}",
                grade=True,
                solution=False,
                locked=True,
                points=POINTS[task],
            )
        )
    return notebook(cells)


def outcomes(result):
    return {task.task: task.outcome for task in result.tasks}


def sleepers():
    """Return the processes on this machine that sleep on behalf of a student."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text())
        except OSError:
            continue
    return [line for line in found if "3.14159" in line and "pytest" not in line]
