"""Case 11: log eps underflow.

Source: rwightman/efficientdet-pytorch#291; yitu-opensource/T2T-ViT#65; kornia/kornia#3966
Symptom: -inf/NaN loss from log(x + 1e-8), sqrt(x+1e-12) guards that worked in fp32
Cause: the guard constant rounds to 0 in fp16 (smallest subnormal 2^-24 = 5.96e-8; half of it
    rounds to 0)
Fix: compute in fp32 or use an eps >= 6.1e-5 (finfo.tiny); prefer log_softmax / logsigmoid
"""

import torch

torch.manual_seed(0)
p = torch.zeros(1, dtype=torch.float16, requires_grad=True)
bad = torch.log(p + 1e-8)
good = torch.log(p.float() + 1e-8)
(g,) = torch.autograd.grad(torch.sqrt(p + 1e-12).sum(), p)
print(bad.item(), good.item(), "d sqrt", g.item())
assert bad.isinf() and good.isfinite() and g.isinf()
