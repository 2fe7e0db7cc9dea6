"""Case 01: t5 forward overflow.

Source: huggingface/transformers#5651 (66246.39 > 65504 in T5DenseReluDense.wo), #9295, #14189
Symptom: loss NaN after N iterations, only in fp16
Cause: a forward activation exceeds 65504 -> inf; the next norm turns inf into NaN. Loss scaling
    cannot help a FORWARD overflow
Fix: bf16, or run that layer in fp32 (autocast(enabled=False)+.float()), or clamp
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
wo = nn.Linear(2048, 8, bias=False)
nn.init.constant_(wo.weight, 1.0)
h = torch.full((1, 2048), 32.35)  # sum = 66252 > 65504


def rms(t):
    return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True))


with torch.autocast("cpu", torch.float16):
    y = wo(h)
    bad = rms(y)
with torch.autocast("cpu", torch.bfloat16):
    good = rms(wo(h).float())
print("fp16", y[0, 0].item(), bad[0, 0].item(), "| bf16", good[0, 0].item())
assert y.isinf().all() and bad.isnan().all() and good.isfinite().all()
