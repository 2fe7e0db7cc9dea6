"""Takes memory that belongs to no process: shared mappings, shared segments, files in memory."""

import ctypes
import mmap
import os

kept = []
try:
    kept.append(os.memfd_create("x"))
    raise SystemExit("GAINED a file in memory")
except OSError:
    pass
if ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) != -1:
    raise RuntimeError("GAINED a shared segment")
for _ in range(64):
    area = mmap.mmap(-1, 32 << 20)
    for page in range(0, len(area), 4096):
        area[page] = 1
    kept.append(area)
