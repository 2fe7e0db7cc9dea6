"""Reads and writes other processes, by ptrace and through /proc."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for number in range(2, 50):
    if libc.ptrace(16, number, 0, 0) == 0:
        raise RuntimeError("GAINED a process")
others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
if others:
    raise RuntimeError(f"GAINED a look at {others}")
