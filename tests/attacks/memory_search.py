"""Reads its own memory for hints and answers that an earlier process might have left there."""

import re

hints = re.compile(rb"Your significand is the mant[a-z]{4} field|smallest sub[a-z]{6} number lies")
with open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in open("/proc/self/maps"):
        bounds, permissions, *rest = line.split()
        if not permissions.startswith("rw") or (len(rest) >= 4 and rest[3] != "[heap]"):
            continue
        first, last = (int(x, 16) for x in bounds.split("-"))
        memory.seek(first)
        try:
            found = hints.search(memory.read(last - first))
        except OSError:
            continue
        if found:
            raise RuntimeError("GAINED a hint")
