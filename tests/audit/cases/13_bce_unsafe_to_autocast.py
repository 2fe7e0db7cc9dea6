"""Case 13: bce unsafe to autocast.

Source: pytorch/pytorch#61098; Megvii-BaseDetection/YOLOX#336; Lightning-AI/pytorch-
    lightning#13871; gc-os-ai/pyaptamer#230
Symptom: RuntimeError: binary_cross_entropy and BCELoss are unsafe to autocast (CUDA only)
Cause: grad of BCE needs range fp16 lacks; CUDA autocast bans the op, CPU autocast runs it in fp32
    - so a CPU test never sees the error
Fix: BCEWithLogitsLoss on logits, or local autocast(enabled=False)+.float()
"""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)


def bce(dev):
    torch.set_autocast_enabled(dev, True)
    torch.set_autocast_dtype(dev, torch.float16)
    try:
        with FakeTensorMode():
            p = torch.rand(4, device=dev, dtype=torch.float16)
            return str(F.binary_cross_entropy(p, p).dtype)
    except RuntimeError as e:
        return str(e).split(".\n")[0]
    finally:
        torch.set_autocast_enabled(dev, False)


print("cpu :", bce("cpu"))
print("cuda:", bce("cuda"))
assert bce("cpu") == "torch.float32" and "unsafe to autocast" in bce("cuda")
