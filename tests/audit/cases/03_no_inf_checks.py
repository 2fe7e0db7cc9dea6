"""Case 03: no inf checks.

Source: huggingface/blog#143; SheldonTsui/GOF_NeurIPS2021#2; nerfstudio-project/nerfstudio#1919
Symptom: AssertionError: No inf checks were recorded for this optimizer.
Cause: every parameter of that optimizer has grad None (graph detached, frozen params, wrong
    params given to the optimizer, module not used this step)
Fix: give the optimizer the params that are in the graph; skip scaler.step when all grads are None
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
o = torch.optim.SGD(unused.parameters(), lr=0.1)
s = torch.amp.GradScaler("cpu")
s.scale(used(torch.ones(1, 2)).sum()).backward()
try:
    s.step(o)
    msg = ""
except AssertionError as e:
    msg = str(e)
print(msg)
assert "No inf checks were recorded for this optimizer" in msg
