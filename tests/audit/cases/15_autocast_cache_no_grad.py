"""Case 15: autocast cache no grad.

Source: pytorch/pytorch#112583, #142234, #105211, #65766; targeted by PR #165068 (Dec 2025)
Symptom: after a no_grad forward inside the same autocast block, weights get no gradient
Cause: the cast weight cached under no_grad had no grad_fn and was reused
Fix: torch >= the release with #165068; on older: separate autocast blocks,
    torch.clear_autocast_cache(), cache_enabled=False
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
layer, x = nn.Linear(2, 2), torch.randn(2, 2)
with torch.autocast("cpu", torch.bfloat16):
    with torch.no_grad():
        layer(x)
    y = layer(x)
print(torch.__version__, "grad_fn:", y.grad_fn)
assert y.grad_fn is not None, "OLD BUG PRESENT"  # NOT reproducible on 2.14.1: fixed
