"""Case 39: eval without autocast.

Source: zjukg/KoPA#11; potamides/AutomaTikZ#8; ToTheBeginning/PuLID#162
Symptom: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half
Cause: half weights with fp32 inputs (or the reverse) outside autocast; autocast had hidden the
    mismatch
Fix: wrap eval in the same autocast, or cast inputs to next(model.parameters()).dtype
"""

import torch
import torch.nn as nn

torch.manual_seed(0)
m = nn.Linear(4, 4).half()
x = torch.ones(1, 4)
try:
    m(x)
    msg = ""
except RuntimeError as e:
    msg = str(e)
with torch.autocast("cpu", torch.float16):
    ok = m(x).dtype
print(msg, "| in autocast:", ok)
assert "same dtype" in msg
