"""Case 07: scale collapses to zero then nan weights.

Source: pytorch/pytorch#99640 (open), #40497; deepinsight/insightface#2262 (Grad Scale: 0);
    NVIDIA/apex#318, #715; Junjue-Wang/FactSeg#6
Symptom: scale 65536 -> 1e-30 -> 0; loss NaN; then the weights are NaN
Cause: permanently non-finite grads halve the scale each step; after 166 skips from 65536 the fp32
    scale is exactly 0 (2^-149 is the last value). Then loss*0 = 0 -> grads 0 (finite!) ->
    unscaled by 1/0 = inf -> NaN, found_inf stays 0, so optimizer.step RUNS with NaN
Fix: treat scale < 1 (or k skips in a row) as an error: find the NaN source in the forward pass
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
p = nn.Parameter(torch.ones(1))
o = torch.optim.SGD([p], lr=1.0)
s = torch.amp.GradScaler("cpu")
n = 0
while s.get_scale() > 0:
    o.zero_grad()
    s.scale((p * float("nan")).sum()).backward()
    s.step(o)
    s.update()
    n += 1
print("skips until scale == 0:", n, "param still", p.item())
o.zero_grad()
s.scale((p * 2).sum()).backward()
g = p.grad.clone()
s.step(o)
s.update()  # a HEALTHY batch
print("healthy batch: scaled grad", g.item(), "-> param", p.item())
assert n == 166 and p.isnan().all()
