"""Case 22: amp not faster.

Source: pytorch/pytorch#67879, #45420, #57806; NVIDIA/apex#806, #101;
    NVIDIA/DeepLearningExamples#32
Symptom: AMP same speed or slower than fp32
Cause: no fast low-precision units (Pascal, GTX16xx, CPU without AMX/AVX512-BF16/FP16), tiny
    layers (launch/cast overhead), dims not multiples of 8, or the bottleneck is the data loader.
    On Ampere+ the fp32 baseline may already use TF32
Fix: profile; check kernels; benchmark with sync; bigger batch/dims
"""

import time

import torch
import torch.nn as nn

torch.manual_seed(0)


def bench(n, dt):
    m = nn.Sequential(*[nn.Linear(n, n) for _ in range(8)])
    x = torch.randn(n, n)

    def it():
        with torch.autocast("cpu", dt, enabled=dt is not torch.float32):
            m(x).float().sum().backward()

    it()
    t = time.perf_counter()
    [it() for _ in range(5)]
    return (time.perf_counter() - t) / 5


for n in (16, 256):
    print(
        n,
        {
            str(d)[6:]: f"{bench(n, d) * 1e3:.2f} ms"
            for d in (torch.float32, torch.bfloat16, torch.float16)
        },
    )
