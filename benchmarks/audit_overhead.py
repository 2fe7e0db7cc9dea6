"""What watching costs: a training step with the audit against the same step without.

    python benchmarks/audit_overhead.py [--rounds N] [--json FILE]

Each round runs every tier for a few steps, on the same model and batch, interleaved. The tiers
are held on all the time here; in use the two costlier ones look at the first steps only.
"""

import sys
import warnings

import common
import torch
import torch.nn.functional as F
from torch import nn

import mptutor
from mptutor import models

FOREVER = 10**9
TIERS = {
    "no audit": None,
    "the loop": {"layer_steps": 0, "call_steps": 0},
    "and layers": {"layer_steps": FOREVER, "call_steps": 0},
    "and calls": {"layer_steps": FOREVER, "call_steps": FOREVER},
}
STEPS = 3


def cnn(batch):
    model = models.small_cnn()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    return model, lambda: F.cross_entropy(model(x), y)


def transformer(batch):
    model = models.char_transformer()
    tokens = torch.randint(64, (batch, 65))
    x, y = tokens[:, :-1], tokens[:, 1:]
    return model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def mlp(batch):
    model = models.mlp()
    x, y = torch.randn(batch, 784), torch.randint(10, (batch,))
    return model, lambda: F.cross_entropy(model(x), y)


WORKLOADS = {"CNN": (cnn, 128), "transformer": (transformer, 32), "MLP": (mlp, 32)}


def training_step(model, loss_of):
    """Everything the always-on tier watches: autocast, scaler, unscale_, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def measure(build, batch, rounds):
    """Return the median seconds of STEPS steps for each tier, without starting and judging."""
    step = training_step(*build(batch))
    seconds = {tier: [] for tier in TIERS}
    for round_number in range(rounds + 1):
        for tier, options in TIERS.items():
            audit = mptutor.audit(**options) if options is not None else None
            if audit is not None:
                audit.start()
            step()
            took = common.interleave({tier: lambda: [step() for _ in range(STEPS)]}, rounds=1)
            if audit is not None:
                audit.stop()
            if round_number > 0:
                seconds[tier] += took[tier]
    return common.medians(seconds)


def main(argv):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = int(argv[argv.index("--rounds") + 1]) if "--rounds" in argv else 7
    rows = []
    for name, (build, batch) in WORKLOADS.items():
        medians = measure(build, batch, rounds)
        row = {"model": f"{name}, batch {batch}"}
        row["no audit, ms a step"] = 1e3 * medians["no audit"] / STEPS
        for tier in list(TIERS)[1:]:
            row[tier] = medians[tier] / medians["no audit"]
        rows.append(row)
    common.report("Time of a training step, times the step without audit", rows, argv)


if __name__ == "__main__":
    main(sys.argv[1:])
