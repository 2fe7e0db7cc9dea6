"""Looks for what others handed in: in the working folder, in /tmp, through open descriptors."""

import os
import sys

for place in (".", "/tmp", "/var/tmp", "/dev/shm", "@CANARY@", os.path.dirname("@CANARY@")):
    for folder, folders, files in os.walk(place):
        if os.path.realpath(folder) in (sys.prefix, sys.base_prefix) or "mptutor-kit" in folder:
            folders.clear()
        elif any(name.endswith((".ipynb", ".json", ".db", ".csv")) for name in files):
            raise RuntimeError("GAINED " + folder)
for descriptor in range(64):
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        continue
    if target.startswith("/") and not target.startswith(("/dev/null", "/proc")):
        raise RuntimeError("GAINED a descriptor of " + target)
