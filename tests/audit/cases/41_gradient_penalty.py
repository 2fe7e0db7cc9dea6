"""Case 41: gradient penalty.

Source: NVIDIA/apex#654; pytorch/pytorch#44667 (docs); lucidrains/stylegan2-pytorch#100
Symptom: WGAN-GP overflows / penalty meaningless
Cause: penalty computed on SCALED grads (norm ~ 65536x) or in fp16
Fix: autograd.grad(scaler.scale(loss)), unscale by 1/get_scale() out of place, compute penalty in
    fp32
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
x = torch.randn(8, 4, requires_grad=True)
d = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def pen(g):
    return ((g.float().norm(dim=1) - 1) ** 2).mean()


def run(scale):
    s = torch.amp.GradScaler("cpu", init_scale=scale)
    with torch.autocast("cpu", torch.float16):
        out = d(x).sum()
    (g,) = torch.autograd.grad(s.scale(out.float()), x, create_graph=True)
    return pen(g).item(), pen(g / s.get_scale()).item()


gt = pen(torch.autograd.grad(d(x).sum(), x)[0]).item()
print(
    "fp32 truth", gt, "| scale 1024 (naive, unscaled)", run(1024.0), "| scale 65536", run(65536.0)
)
assert run(1024.0)[0] > 1e4 and abs(run(1024.0)[1] - gt) < 1e-2
