"""Case 28: loss sum overflow.

Source: qubvel-org/segmentation_models.pytorch#463; pytorch/pytorch#29429
Symptom: Dice / sum-reduced loss inf -> NaN at 512x512
Cause: sum of >65504 ones is inf in fp16 (CUDA autocast sums in fp32, CPU autocast and .half() do
    not)
Fix: sum in fp32: x.float().sum() or sum(dtype=torch.float32); mean reduction
"""

import torch

torch.manual_seed(0)
o = t = torch.ones(512 * 512, dtype=torch.float16)
inter = (o * t).sum()
dice = 2 * inter / (o.sum() + t.sum())
print(inter, dice, (o * t).sum(dtype=torch.float32))
assert inter.isinf() and dice.isnan()
