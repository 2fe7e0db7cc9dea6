"""Case 17: accumulation scale changes.

Source: pytorch/pytorch#36601 (docs: update only when stepping); NVIDIA/apex#286, #439
Symptom: gradient accumulation gives different result from a large batch
Cause: scaler.update() called per micro-batch changes the scale while scaled grads are being
    accumulated, so a single unscale cannot undo both; also forgetting loss/k
Fix: same scale for all micro-batches: update() only after step(); divide the loss by k
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(update_each):
    p = nn.Parameter(torch.zeros(1))
    o = torch.optim.SGD([p], lr=1.0)
    s = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for i in range(2):
        s.scale((p * 1.0).sum() / 2).backward()
        if update_each and i == 0:
            s.update(8.0)  # scale 4 -> 8 between micro-batches
    s.step(o)
    s.update()
    return -p.item()


print("correct step", run(False), " with mid-accumulation update", run(True))
assert run(False) == 1.0 and run(True) != 1.0
