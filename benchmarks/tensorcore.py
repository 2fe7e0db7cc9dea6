"""Time whole FP16 training steps: emulated, natively on the CPU, and in FP32 for comparison.

A step is forward, loss, scaled backward, unscaling, SGD with momentum and the scaler's update.
"native" is torch's own FP16 autocast on the CPU, "emulated" the same step inside `tensor_core()`,
"simulated" inside `simulate_amp()`, which follows CUDA's policy as well.

    python benchmarks/tensorcore.py [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import interleave, medians, report
from torch import Tensor, nn

from mptutor import models, simulate_amp
from mptutor.tensorcore import tensor_core

ROUNDS = 15

Batch = tuple[nn.Module, Tensor, Tensor]


def cnn() -> Batch:
    return models.small_cnn(), torch.randn(128, 3, 32, 32), torch.randint(10, (128,))


def mlp() -> Batch:
    return models.mlp(), torch.randn(128, 784), torch.randint(10, (128,))


def transformer() -> Batch:
    codes = torch.randint(96, (32, 65))
    return models.char_transformer(), codes[:, :-1], codes[:, 1:]


MODELS = {
    "CNN, batch 128": (cnn, "5x", "1.3"),
    "MLP 784-512-512-10, batch 128": (mlp, "7x", "1.5"),
    "transformer, 2 layers of 128, 32 x 64": (transformer, "9x", "1.4"),
}


def training_step(build: Callable[[], Batch], fp16: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=fp16)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=fp16):
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def contenders(build: Callable[[], Batch]) -> dict[str, Callable[[], object]]:
    """Put the switches between the steps, so that turning them is not timed with a step."""
    emulation, simulation = tensor_core(), simulate_amp()
    return {
        "FP32": training_step(build, fp16=False),
        "native": training_step(build, fp16=True),
        "emulation on": emulation.enable,
        "emulated": training_step(build, fp16=True),
        "emulation off": emulation.disable,
        "simulation on": simulation.__enter__,
        "simulated": training_step(build, fp16=True),
        "simulation off": lambda: simulation.__exit__(None, None, None),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, (build, faster, slower) in MODELS.items():
        seconds = medians(interleave(contenders(build), ROUNDS))
        rows.append(
            {
                "training step": name,
                "FP32 ms": 1e3 * seconds["FP32"],
                "native / emulated": seconds["native"] / seconds["emulated"],
                "at least": faster,
                "emulated / FP32": seconds["emulated"] / seconds["FP32"],
                "at most": slower,
                "simulated / FP32": seconds["simulated"] / seconds["FP32"],
            }
        )
    report("Tensor Core arithmetic on the CPU, medians of interleaved steps", rows)


if __name__ == "__main__":
    main()
