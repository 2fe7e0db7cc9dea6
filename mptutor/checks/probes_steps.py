"""A probe for training steps: it trains with the learner's step and tells what each step did.

Like every probe it knows nothing of right and wrong; see `mptutor.checks.probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import torch


def take_scaled_steps(written: Callable[..., Any], inputs: Sequence[Any]) -> str:
    """Train a small network with the learner's training step and tell what it did, step by step.

    ``inputs`` are the scale, the number of steps, and the steps with a broken batch.
    ``"ran skipped; weights 93053f56"`` says whether the optimizer ran in each step, and the hash
    that the final weights have. Where the step returned something else than that, it is told too.
    """
    from mptutor.experiments.recipes import AMP_FP16
    from mptutor.experiments.scaler_traces import BROKEN_BRIGHTNESS, hash_of
    from mptutor.experiments.tasks import seeded
    from mptutor.models import mlp

    scale, steps, broken_steps = inputs
    net = seeded(lambda: mlp((784, 32, 10)), seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    ran: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: ran.append(True))
    told = []
    with AMP_FP16.arithmetic(torch.device("cpu")):
        for step, (images, labels) in enumerate(_first_batches(steps)):
            ran.clear()
            bright = images * BROKEN_BRIGHTNESS if step in broken_steps else images
            said = written(net, optimizer, bright, labels, scale)
            told.append("ran" if ran else "skipped")
            if said is not bool(ran):
                told[-1] += f" (returned {said!r:.20})"
    return f"{' '.join(told)}; weights {hash_of(net)[:8]}"


@cache
def _first_batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from mptutor.data import batches, load

    return list(islice(batches(load("fashion-mnist-5k").train, 64), count))
