"""Case 33: rope positions bf16.

Source: huggingface/diffusers#13922; huggingface/transformers#29285, #25681;
    huggingface/candle#3520; KellerJordan/modded-nanogpt#39
Symptom: long-context / image positions collapse under bf16 autocast
Cause: positions > 256 are not representable in bf16 (step 512 at 65536); matmul/einsum/outer is
    on the downcast list so .float() on the inputs does not help
Fix: autocast(enabled=False) around the angle computation
"""

import torch

torch.manual_seed(0)
pos = torch.arange(65536, 65536 + 256).float()[:, None]
inv = torch.tensor([[1.0]])
with torch.autocast("cpu", torch.bfloat16):
    bad = pos.float() @ inv.float()
    with torch.autocast("cpu", enabled=False):
        good = pos @ inv
print("distinct angles", bad.unique().numel(), "vs", good.unique().numel())
assert bad.unique().numel() <= 2 and good.unique().numel() == 256
