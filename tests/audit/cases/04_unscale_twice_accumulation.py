"""Case 04: unscale twice accumulation.

Source: microsoft/Swin-Transformer#311; huggingface/transformers#24449, #23935;
    hiyouga/LlamaFactory#77
Symptom: RuntimeError: unscale_() has already been called on this optimizer since the last
    update().
Cause: unscale_ is called on every micro-batch, step/update only every k-th
Fix: call unscale_ (and clip, step, update) only on the iteration that steps
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
m = nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
s = torch.amp.GradScaler("cpu")
msg = ""
try:
    for _i in range(2):  # accumulate 2 micro-batches
        s.scale(m(torch.ones(1, 2)).sum() / 2).backward()
        s.unscale_(o)  # wrong place
except RuntimeError as e:
    msg = str(e)
print(msg)
assert "unscale_() has already been called" in msg
