"""Case 27: attention logits overflow.

Source: ultralytics/ultralytics#24990; facebookresearch/deit#29, #109; LTH14/mage#26; Dao-
    AILab/flash-attention#49
Symptom: NaN in attention under fp16 AMP
Cause: (q @ k^T) * scale overflows 65504 BEFORE the scale is applied; softmax(inf-inf)=NaN
Fix: scale q first, or compute logits in fp32 / use scaled_dot_product_attention
"""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
q = k = torch.full((1, 4, 128), 24.0)  # 128*24*24 = 73728
with torch.autocast("cpu", torch.float16):
    bad = torch.softmax((q @ k.transpose(-2, -1)) * 128**-0.5, -1)
    good = torch.softmax((q * 128**-0.5) @ k.transpose(-2, -1), -1)
    sdpa = F.scaled_dot_product_attention(q[None], k[None], k[None])
print(bad[0, 0], good[0, 0], "sdpa finite:", sdpa.isfinite().all().item())
assert bad.isnan().all() and good.isfinite().all()
