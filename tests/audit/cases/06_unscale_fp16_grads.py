"""Case 06: unscale fp16 grads.

Source: pytorch/pytorch#74739; mk-minchul/AdaFace#127; zai-org/CogVideo#775; bitsandbytes-
    foundation/bitsandbytes#945
Symptom: ValueError: Attempting to unscale FP16 gradients.
Cause: the parameters themselves are fp16 (model.half() / torch_dtype=float16), so .grad is fp16;
    GradScaler requires fp32 master params
Fix: keep params fp32 and use autocast (LoRA: cast the trainable params to fp32); never .half()
    the model you train with GradScaler
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(half):
    m = nn.Linear(4, 1)
    m = m.half() if half else m
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    s = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        loss = m(torch.ones(1, 4)).sum()
    s.scale(loss).backward()
    s.unscale_(o)
    return m.weight.grad.dtype


try:
    run(True)
    msg = ""
except ValueError as e:
    msg = str(e)
print(msg, "| fp32 params ->", run(False))
assert "FP16" in msg and run(False) == torch.float32
