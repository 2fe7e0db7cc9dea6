"""Case 36: autocast is thread local.

Source: pytorch/pytorch#38487, #54912, #50170, #125186
Symptom: model forward in worker threads (old DataParallel, custom threads) runs fp32
Cause: autocast state is thread-local
Fix: enter autocast inside the thread / decorate forward
"""

import threading

import torch
import torch.nn as nn

torch.manual_seed(0)

layer, out = nn.Linear(2, 2), {}
with torch.autocast("cpu", torch.bfloat16):
    out["main"] = layer(torch.ones(1, 2)).dtype
    t = threading.Thread(target=lambda: out.update(thread=layer(torch.ones(1, 2)).dtype))
    t.start()
    t.join()
print(out)
assert out == {"main": torch.bfloat16, "thread": torch.float32}
