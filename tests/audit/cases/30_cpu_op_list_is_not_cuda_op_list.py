"""Case 30: cpu op list is not cuda op list.

Source: docs amp.md CPU vs CUDA op lists; aten/src/ATen/autocast_mode.cpp; pytorch/pytorch#111456
    (CPU slow path)
Symptom: a check that passes on CPU autocast says nothing about CUDA (and the reverse)
Cause: softmax, layer_norm, sum, exp, norm, cumsum... are fp32 under CUDA autocast but NOT in the
    CPU list
Fix: probe the CUDA list on CPU with FakeTensorMode
"""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)


def dtypes(dev):
    with FakeTensorMode():
        h = torch.zeros(8, 8, device=dev, dtype=torch.float16)
        torch.set_autocast_enabled(dev, True)
        torch.set_autocast_dtype(dev, torch.float16)
        try:
            return {
                k: str(v.dtype)[6:]
                for k, v in {
                    "softmax": h.softmax(-1),
                    "layer_norm": F.layer_norm(h, (8,)),
                    "sum": h.sum(),
                    "exp": h.exp(),
                    "norm": h.norm(),
                    "mean": h.mean(),
                    "cross_entropy": F.cross_entropy(
                        h, torch.zeros(8, dtype=torch.long, device=dev)
                    ),
                }.items()
            }
        finally:
            torch.set_autocast_enabled(dev, False)


c, g = dtypes("cpu"), dtypes("cuda")
print("cpu ", c)
print("cuda", g)
assert (
    c["softmax"] == "float16"
    and g["softmax"] == "float32"
    and g["mean"] == "float16"
    and c["cross_entropy"] == g["cross_entropy"] == "float32"
)
