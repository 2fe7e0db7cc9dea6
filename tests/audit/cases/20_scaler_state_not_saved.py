"""Case 20: scaler state not saved.

Source: huggingface/transformers#34053 (256 vs 65536 after resume), PR #11663;
    ultralytics/ultralytics#22189; allenai/tango#154; co-tracker#101
Symptom: skipped steps / loss bump right after resume; run is not bit-reproducible
Cause: GradScaler restarts at 65536 because state_dict() was not checkpointed
Fix: save/load scaler.state_dict() after update(); load before the first scale()
"""

import torch
import torch.nn as nn

torch.manual_seed(0)


def steps(s, n, mult=1e3):
    p = nn.Parameter(torch.ones(1))
    o = torch.optim.SGD([p], lr=0.0)
    skips = 0
    for _ in range(n):
        o.zero_grad()
        s.scale((p.half() * mult).sum()).backward()
        old = s.get_scale()
        s.step(o)
        s.update()
        skips += s.get_scale() < old
    return skips


s = torch.amp.GradScaler("cpu")
first = steps(s, 20)
sd = s.state_dict()
fresh = torch.amp.GradScaler("cpu")
loaded = torch.amp.GradScaler("cpu")
loaded.load_state_dict(sd)
a, b = steps(fresh, 20), steps(loaded, 20)
print(sd, "| skips: first", first, "resume w/o state", a, "with", b)
assert a == first > 0 and b == 0
