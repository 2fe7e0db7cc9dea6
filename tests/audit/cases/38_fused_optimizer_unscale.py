"""Case 38: fused optimizer unscale.

Source: Lightning-AI/pytorch-lightning#15501; pytorch/pytorch#95781 (PR #95847), #96755, #90752
Symptom: fused Adam + unscale_/clip gave different results (torch 1.13/2.0)
Cause: fused optimizers unscale inside the kernel; explicit unscale_ had to be tracked
Fix: fixed upstream: assert parity between fused/unfused, with/without unscale_
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(fused, unscale):
    p = nn.Parameter(torch.linspace(-1, 1, 64))
    o = torch.optim.Adam([p], lr=0.01, fused=fused)
    s = torch.amp.GradScaler("cpu")
    for _ in range(5):
        o.zero_grad()
        s.scale((p**2).sum()).backward()
        if unscale:
            s.unscale_(o)
        s.step(o)
        s.update()
    return p.detach().clone(), p.grad.abs().max().item()


ref, g0 = run(False, False)
for f in (False, True):
    for u in (False, True):
        r, g = run(f, u)
        print(
            "fused",
            f,
            "unscale_",
            u,
            "max diff",
            (r - ref).abs().max().item(),
            "max |grad| left in .grad",
            g,
        )
        assert (r - ref).abs().max() < 1e-5
