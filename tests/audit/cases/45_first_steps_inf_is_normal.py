"""Case 45: first steps inf is normal.

Source: pytorch/pytorch#111739, #46849; pengzhiliang/MAE-pytorch#49; espnet#3237; Skovorp/feral#16
Symptom: grad norm inf/NaN in the first iterations alarms people
Cause: scale starts at 65536 and is calibrated by skipping; clip_grad_norm_ returns inf and turns
    grads into NaN, harmless because step() is skipped - but NOT harmless without a scaler
Fix: log scale and skip counter; alarm only on skip RATE; error_if_nonfinite=False with AMP
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
p = nn.Parameter(torch.ones(1))
o = torch.optim.SGD([p], lr=0.01)
s = torch.amp.GradScaler("cpu")
log = []
for _ in range(8):
    o.zero_grad()
    s.scale((p.half() * 10.0).sum()).backward()
    s.unscale_(o)
    n = nn.utils.clip_grad_norm_([p], 1.0).item()
    old = s.get_scale()
    s.step(o)
    s.update()
    log.append((n, old, s.get_scale() < old))
print(log)
assert log[0][0] == float("inf") and log[-1][0] == 10.0 and p.isfinite().all()
