"""Case 44: fp16 without scaler underflow.

Source: engichang1467/Open-Rig3R#35; karpathy/nanoGPT#87; HF lerobot#4652
Symptom: no NaN, no warning, loss just flattens early
Cause: CUDA autocast default is fp16; without GradScaler gradients < ~3e-8 become 0 (and < 6.1e-5
    lose bits)
Fix: GradScaler for fp16; bf16 needs none
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
x = torch.randn(64, 32)
y = torch.randn(64, 1)


def zeros(scale, dt):
    m.zero_grad()
    with torch.autocast("cpu", dt):
        loss = F.mse_loss(m(x), y) * 1e-6  # small loss weight
    (loss * scale).backward()
    g = torch.cat([p.grad.flatten() for p in m.parameters()])
    return (g == 0).float().mean().item()


r = {
    f"{str(d)[6:]} x{int(s)}": round(zeros(s, d), 3)
    for d in (torch.float16, torch.bfloat16)
    for s in (1, 65536)
}
print("fraction of exactly-zero grads", r)
assert r["float16 x1"] > 0.5 and r["float16 x65536"] < 0.05 and r["bfloat16 x1"] < 0.05
