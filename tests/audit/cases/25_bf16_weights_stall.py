"""Case 25: bf16 weights stall.

Source: meta-pytorch/torchtune#2254; pytorch/ao#1124 (stochastic rounding);
    pytorch/pytorch#120376; workofart/ml-by-hand#85
Symptom: pure-bf16 training plateaus; some weights never move
Cause: bf16 has 8 significant bits: an update smaller than ~2^-9..2^-8 of the weight rounds away
    (paper: ratio >2048 for fp16, >256 for bf16)
Fix: fp32 master weights (autocast), stochastic rounding, or Kahan summation
"""

import torch

torch.manual_seed(0)


def run(dtype, n=1000, lr=1e-3, sr=False):
    w = torch.ones(1000, dtype=dtype)
    for _ in range(n):
        v = w.float() + lr
        if sr:
            v = (
                (v.view(torch.int32) + torch.randint(0, 1 << 16, v.shape, dtype=torch.int32))
                & -65536
            ).view(torch.float32)
        w = v.to(dtype)
    return w.float().mean().item()


print(
    "want 2.0: fp32",
    run(torch.float32),
    "fp16",
    run(torch.float16),
    "bf16",
    run(torch.bfloat16),
    "bf16+SR",
    run(torch.bfloat16, sr=True),
)
assert run(torch.bfloat16) == 1.0 and abs(run(torch.bfloat16, sr=True) - 2) < 0.05
