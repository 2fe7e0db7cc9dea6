"""Takes memory in many processes, each below its own limit."""

import os
import time

for _ in range(8):
    try:
        if os.fork() == 0:
            kept = bytearray(b"x") * (96 << 20)
            time.sleep(1000)
    except OSError:
        pass
time.sleep(1000)
