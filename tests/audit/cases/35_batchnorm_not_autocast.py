"""Case 35: batchnorm not autocast.

Source: pytorch/pytorch#88929 (maintainer: by design), #115500
Symptom: user expects fp32 BatchNorm under autocast; activations are fp16 and can be inf before BN
Cause: batch_norm is in neither CUDA list: it runs in its INPUT dtype (fp16 in/out) with fp32
    weights/running stats; only MPS lists batch_norm as fp32
Fix: bn(x.float()) inside autocast(enabled=False) if needed
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)

layer, bn = nn.Linear(10, 10), nn.BatchNorm1d(10)
with torch.autocast("cpu", torch.float16):
    nn.init.constant_(layer.weight, 10.0)
    h = layer(torch.full((2, 10), 1000.0))
    y = bn(h)  # 10*10*1000 = 1e5 > 65504
print(
    "cpu: in",
    h.dtype,
    "out",
    y.dtype,
    "running_mean",
    bn.running_mean.dtype,
    "inf in:",
    h.isinf().any().item(),
    "nan out:",
    y.isnan().any().item(),
)
with FakeTensorMode():
    torch.set_autocast_enabled("cuda", True)
    b = F.batch_norm(
        torch.zeros(2, 10, device="cuda", dtype=torch.float16),
        torch.zeros(10, device="cuda"),
        torch.ones(10, device="cuda"),
        training=True,
    )
    torch.set_autocast_enabled("cuda", False)
print("cuda (fake): out", b.dtype)
assert (
    y.dtype == torch.float16 and b.dtype == torch.float16 and bn.running_mean.dtype == torch.float32
)
