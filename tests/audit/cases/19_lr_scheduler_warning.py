"""Case 19: lr scheduler warning.

Source: pytorch/pytorch#44511, #55585, #67590 (all open); huggingface/transformers#11106;
    Lightning#16228
Symptom: Detected call of `lr_scheduler.step()` before `optimizer.step()` although the order is
    right
Cause: first scaler.step() found inf and SKIPPED optimizer.step(); scheduler.step() ran anyway
    (also desynchronises the schedule)
Fix: step the scheduler only if the scale did not drop: old=get_scale(); update(); if
    get_scale()>=old: sched.step()
"""

import warnings

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(guard):
    p = nn.Parameter(torch.ones(1))
    o = torch.optim.SGD([p], lr=1.0)
    sch = torch.optim.lr_scheduler.StepLR(o, 1)
    s = torch.amp.GradScaler("cpu")
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        s.scale((p * float("inf")).sum()).backward()
        old = s.get_scale()
        s.step(o)
        s.update()
        if not guard or s.get_scale() >= old:
            sch.step()
    return [str(x.message)[:60] for x in w], o.param_groups[0]["lr"]


print(run(False))
print(run(True))
assert any("lr_scheduler.step" in t for t in run(False)[0]) and run(True) == ([], 1.0)
