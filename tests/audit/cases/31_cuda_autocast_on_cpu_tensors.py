"""Case 31: cuda autocast on cpu tensors.

Source: karpathy/nanoGPT#654 (mps/cpu); common report: GradScaler() on CPU
Symptom: AMP silently off: warnings only
Cause: torch.autocast("cuda") does nothing to CPU tensors; GradScaler() defaults to device="cuda"
    and disables itself
Fix: use device_type = tensor.device.type for both
"""

import warnings

import torch

torch.manual_seed(0)

warnings.simplefilter("ignore")
with torch.autocast("cuda"):
    d = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
s = torch.amp.GradScaler()
print(
    d,
    "scaler enabled:",
    s.is_enabled(),
    s.scale(torch.ones(1)).item(),
    "| cpu:",
    torch.amp.GradScaler("cpu").is_enabled(),
)
assert d == torch.float32 and (not s.is_enabled() or torch.cuda.is_available())
