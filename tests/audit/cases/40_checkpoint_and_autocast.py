"""Case 40: checkpoint and autocast.

Source: pytorch/pytorch#71124, #141896 (open), #159359; facebookresearch/fairscale#1199
Symptom: recomputed activations have another dtype (CheckpointError / wrong precision)
Cause: recomputation runs in backward, outside autocast; old code re-entered autocast with default
    dtype
Fix: torch.utils.checkpoint saves+restores autocast (>=1.11); hand-written recompute must store
    get_autocast_dtype
"""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)

seen = []


class L(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        seen.append(y.dtype)
        return y


layer, x = L(4, 4), torch.randn(2, 4, requires_grad=True)
for reentrant in (True, False):
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(layer, x, use_reentrant=reentrant)
    y.float().sum().backward()
    print("use_reentrant", reentrant, seen)
    assert set(seen) == {torch.bfloat16}  # fixed upstream
