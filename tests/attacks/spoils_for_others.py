"""Changes process-wide state that those who come after might inherit."""

import builtins
import os
import random
import sys

import torch

torch.set_default_dtype(torch.float16)
torch.use_deterministic_algorithms(True)
random.seed(99)
torch.manual_seed(99)
sys.path.insert(0, "/tmp")
os.environ["PYTHONPATH"] = "/tmp"
open("/tmp/math.py", "w").write("raise SystemExit")
builtins.float = int
os.chdir("/")
