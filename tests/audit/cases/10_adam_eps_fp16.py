"""Case 10: adam eps fp16.

Source: pytorch/pytorch#147437 (open), #8860; NVIDIA/apex#240; google-deepmind/optax#1754;
    afiaka87/glide-finetune#5
Symptom: parameters NaN after the first optimizer.step() of a .half() model
Cause: fp16: eps=1e-8 rounds to 0 and grad**2 underflows (grad < 2.4e-4) so the update is g/(0+0)
Fix: fp32 params (autocast) - or eps>=1e-4 as a stop-gap
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(dtype, eps):
    p = nn.Parameter(torch.ones(3, dtype=dtype))
    o = torch.optim.Adam([p], lr=1e-3, eps=eps, foreach=False)
    p.grad = torch.tensor([0.0, 1e-4, 1.0], dtype=dtype)
    o.step()
    return p.detach()


print(
    "fp16 eps 1e-8",
    run(torch.float16, 1e-8),
    "| eps 1e-4",
    run(torch.float16, 1e-4),
    "| fp32",
    run(torch.float32, 1e-8),
)
print(
    "eps in fp16 =",
    torch.tensor(1e-8).half().item(),
    "(1e-4)^2 in fp16 =",
    torch.tensor(1e-4).half().pow(2).item(),
)
assert not run(torch.float16, 1e-8).isfinite().all() and run(torch.float16, 1e-4).isfinite().all()
