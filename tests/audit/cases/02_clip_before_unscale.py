"""Case 02: clip before unscale.

Source: Lightning-AI/pytorch-lightning#9330, #9599; pytorch/examples#1196; harubaru/waifu-
    diffusion#64; rwth-i6/returnn#1590
Symptom: learning curve almost flat; grad norm after step ~1e-5
Cause: clip_grad_norm_ sees gradients multiplied by the scale (65536), clips them to max_norm,
    then step() divides by 65536
Fix: scaler.unscale_(opt) before clip
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def run(unscale_first):
    p = nn.Parameter(torch.ones(4))
    o = torch.optim.SGD([p], lr=1.0)
    s = torch.amp.GradScaler("cpu")
    s.scale((p * 0.1).sum()).backward()  # true grad norm 0.2 < max_norm 1
    if unscale_first:
        s.unscale_(o)
    nn.utils.clip_grad_norm_([p], 1.0)
    s.step(o)
    s.update()
    return (1 - p[0]).item()


bad, good = run(False), run(True)
print("update without unscale", bad, " with", good, " ratio", good / bad)
assert abs(good - 0.1) < 1e-6 and bad < 1e-4
