"""Case 47: rms norm policy changed.

Source: pytorch/pytorch#188955 (torch 2.12 registers rms_norm as fp32, PR #174824)
Symptom: dtype of RMSNorm output under CUDA autocast changed between 2.11 and 2.12; peak memory
    regression
Cause: op lists are version dependent
Fix: never hard-code op lists: probe the running build
"""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)

with FakeTensorMode():
    x = torch.zeros(2, 8, device="cuda", dtype=torch.bfloat16)
    w = torch.ones(8, device="cuda", dtype=torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    y = F.rms_norm(x, (8,), w)
    z = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", torch.float16)
print(torch.__version__, "F.rms_norm ->", y.dtype, "| hand written ->", z.dtype)
assert y.dtype == torch.float32
