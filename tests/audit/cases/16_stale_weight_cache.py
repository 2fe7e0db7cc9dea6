"""Case 16: stale weight cache.

Source: pytorch/pytorch#120376 (a comment of 2024-04: training loop inside autocast);
    luyug/GradCache#17
Symptom: loss barely moves when the whole training loop sits inside one `with autocast()`
Cause: autocast caches the low-precision copy of fp32 leaf weights until the outermost context
    exits; optimizer.step() inside the block does not invalidate it
Fix: wrap only forward+loss, one autocast block per iteration
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def train(outside):
    torch.manual_seed(0)
    m = nn.Linear(8, 1)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    def it():
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
        return loss.item()

    if outside:
        with torch.autocast("cpu", torch.bfloat16):
            return [it() for _ in range(10)]
    return [it() for _ in range(10)]


a, b = train(True), train(False)
print("one big block", a[0], "->", a[-1], "| per-iteration", b[0], "->", b[-1])
assert a[0] == a[-1] and b[-1] < b[0] / 10
