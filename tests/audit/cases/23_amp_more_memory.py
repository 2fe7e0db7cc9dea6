"""Case 23: amp more memory.

Source: pytorch/pytorch#61173 (open); pytorch/tutorials#1267 (official recipe itself);
    hoya012/automatic-mixed-precision-tutorials-pytorch#1
Symptom: memory does not drop (or rises) with AMP
Cause: params, grads and optimizer state stay fp32; autocast ADDS a 16-bit copy of every weight
    (kept for backward). Only activations shrink, so small-batch / wide-layer nets lose
Fix: increase batch (activations dominate), or bf16 params + careful optimizer
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def saved_bytes(batch, width, dt):
    m = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)])
    own = {p.untyped_storage().data_ptr() for p in m.parameters()}
    seen = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in own:
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=dt != "fp32"):
        m(torch.randn(batch, width))
    return sum(seen.values())


for b in (8, 4096):
    print("batch", b, {d: f"{saved_bytes(b, 512, d) / 2**20:.2f} MiB" for d in ("fp32", "bf16")})
assert saved_bytes(8, 512, "bf16") > saved_bytes(8, 512, "fp32") and saved_bytes(
    4096, 512, "bf16"
) < saved_bytes(4096, 512, "fp32")
