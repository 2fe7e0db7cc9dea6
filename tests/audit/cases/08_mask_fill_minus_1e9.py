"""Case 08: mask fill minus 1e9.

Source: NVIDIA/apex#1052, #1105; facebookresearch/fairseq#3575; dotnet/TorchSharp#1135
Symptom: RuntimeError: value cannot be converted to type at::Half / c10::Half without overflow
Cause: -1e9 is outside fp16 (|max| 65504); masked_fill checks, but tensor[idx]=-1e9, +(-1e9) and
    torch.where silently give -inf
Fix: torch.finfo(x.dtype).min (computed from the tensor that is masked), or float("-inf"), or mask
    in fp32
"""

import torch

torch.manual_seed(0)
h = torch.zeros(2, dtype=torch.float16)
m = torch.tensor([True, False])
try:
    h.masked_fill(m, -1e9)
    msg = ""
except RuntimeError as e:
    msg = str(e)
silent = [(h + (-1e9))[0].item(), torch.where(m, -1e9, h)[0].item()]
print(msg, "| silent variants:", silent, "| ok:", h.masked_fill(m, torch.finfo(h.dtype).min))
assert "without overflow" in msg and all(v == float("-inf") for v in silent)
