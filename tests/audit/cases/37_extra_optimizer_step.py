"""Case 37: extra optimizer step.

Source: FlyEgle/imageclassification#1; IAHispano/Applio#860
Symptom: loss NaN after thousands of iterations with AMP only
Cause: optimizer.step() is still called after (or instead of) scaler.step(): bypasses the inf
    check, applies inf/NaN or still-scaled grads
Fix: only scaler.step(optimizer)
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(mode):
    p = nn.Parameter(torch.ones(1))
    o = torch.optim.SGD([p], lr=0.1)
    s = torch.amp.GradScaler("cpu")
    err = ""
    s.scale((p * (float("inf") if mode == "both" else 1.0)).sum()).backward()
    if mode != "instead":
        s.step(o)
    if mode != "ok":
        o.step()
    try:
        s.update()
    except AssertionError as e:
        err = str(e)
    return p.item(), err


r = {m: run(m) for m in ("ok", "instead", "both")}
print(r)
assert (
    abs(r["ok"][0] - 0.9) < 1e-6
    and r["instead"][0] < -6000
    and "prior to update" in r["instead"][1]
    and r["both"][0] == float("-inf")
)
