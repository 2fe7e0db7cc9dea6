"""The training steps that the forecast explorer prices: counted once, shipped as a table.

A forecast has two halves (`mptutor.forecast`). Counting what a step computes, moves and holds takes
seconds, and gives the same on every GPU; pricing the counts for a GPU is arithmetic. So the counts
are shipped, and the explorer prices them for whichever GPU and batch is chosen.

What an operation computes and moves grows with the batch along a straight line: a part for the
weights and a part for each sample. Two steps give the line, and each further batch is checked
against it. The peak of memory may move from one moment of the step to another, so it is kept for
every batch. To count anew:

    python -m mptutor.widgets.forecast_table
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, FP32, PURE_BF16, Recipe
from mptutor.forecast.ledger import PARTS
from mptutor.forecast.operations import Operation
from mptutor.forecast.step import Step, take_step
from mptutor.forecast.workloads import COURSE, Workload, find_workload
from mptutor.models import mlp

RECIPES: dict[str, Recipe] = {r.name: r for r in (FP32, AMP_FP16, AMP_BF16, PURE_BF16)}

#: The batches of each network are 2^0 to 2^power.
LARGEST_POWER = {
    "small_cnn": 14,
    "mlp": 15,
    "wide_mlp": 14,
    "char_transformer": 11,
    "resnet50": 9,
}

_PHASES = ("forward", "backward", "update")
_KINDS = ("pointwise", "product", "convolution")
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,  # the scaler's reciprocal of the scale
}
_FILE = Path(__file__).with_suffix(".json")


def workload(model: str) -> Workload:
    """Return what is trained under one of the names of `LARGEST_POWER`."""
    if model == "wide_mlp":
        return Workload(model, lambda: mlp((4096, 4096, 4096, 4096)), (4096,))
    return COURSE[model] if model in COURSE else find_workload(model)


def count(model: str, recipe: Recipe) -> dict[str, Any]:
    """Count a model's steps at every batch.

    Returns
    -------
    dict
        ``layers``: names; ``operations``: rows of layer, phase, kind, dtype, FLOP of the weights
        and of a sample, bytes of the weights and of a sample, and how many there are of the kind;
        ``peaks``: bytes of each part, for each batch; and ``parameters``.
    """
    steps = {
        2**power: take_step(workload(model), 2**power, recipe)
        for power in range(LARGEST_POWER[model] + 1)
    }
    # From 8 on: at a batch of 1 some results are as small as what they are made of.
    lines = _lines(steps[8].operations, 8, steps[16].operations, 16)
    for batch, step in steps.items():
        if _at(lines, batch) != _counted(step.operations):
            print(f"{model}, {recipe.name}, batch {batch}: not on the line")
    layers = list(dict.fromkeys(line[0] for line in lines))
    return {
        "layers": layers,
        "operations": [[layers.index(line[0]), *line[1:], n] for line, n in Counter(lines).items()],
        "peaks": [list(step.memory.values()) for step in steps.values()],
        "parameters": steps[1].parameters,
    }


def _lines(few: Any, n_few: int, many: Any, n_many: int) -> list[tuple]:
    lines = []
    for a, b in zip(few, many, strict=True):
        per_sample = [
            (getattr(b, what) - getattr(a, what)) // (n_many - n_few)
            for what in ("flop", "moved_bytes")
        ]
        fixed = [a.flop - n_few * per_sample[0], a.moved_bytes - n_few * per_sample[1]]
        lines.append(
            (*_indices(a), fixed[0], per_sample[0], fixed[1], per_sample[1]),
        )
    return lines


def _indices(op: Operation) -> tuple[str, int, int, int]:
    dtype = str(op.dtype).removeprefix("torch.")
    return op.layer, _PHASES.index(op.phase), _KINDS.index(op.kind), [*_DTYPES].index(dtype)


def _at(lines: list[tuple], batch: int) -> list[tuple]:
    return [(*line[:4], line[4] + batch * line[5], line[6] + batch * line[7]) for line in lines]


def _counted(operations: tuple[Operation, ...]) -> list[tuple]:
    return [(*_indices(op), op.flop, op.moved_bytes) for op in operations]


@cache
def load_table() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the counts that come with the package, by model and recipe."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def step_at(model: str, recipe: str, power: int) -> Step:
    """Return the step of a model by a recipe at a batch of 2^power, as `take_step` would."""
    counted = load_table()[model][recipe]
    operations = []
    for layer, phase, kind, dtype, flop, flop_each, nbytes, nbytes_each, n in counted["operations"]:
        operation = Operation(
            name="",
            layer=counted["layers"][layer],
            phase=_PHASES[phase],
            dtype=list(_DTYPES.values())[dtype],
            flop=flop + flop_each * 2**power,
            moved_bytes=nbytes + nbytes_each * 2**power,
            kind=_KINDS[kind],
        )
        operations += [operation] * n
    return Step(
        operations=tuple(operations),
        memory=dict(zip(PARTS, counted["peaks"][power], strict=True)),
        parameters=counted["parameters"],
        optimizer="SGD",
    )


if __name__ == "__main__":
    table = {
        model: {name: count(model, recipe) for name, recipe in RECIPES.items()}
        for model in LARGEST_POWER
    }
    _FILE.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
