"""Reads files of the host: passwords, keys, the canary, other roots through /proc."""

import os

for path in (
    "/etc/shadow",
    "/root/.bashrc",
    "/home",
    "/var/log",
    "/sys/kernel",
    "@CANARY@/file.txt",
    "/proc/1/root/etc/shadow",
    "/proc/self/cwd/../../etc/shadow",
    "/proc/1/cwd/@CANARY@",
    "/boot",
    "/proc/sys/kernel/core_pattern/../../../../etc/shadow",
):
    try:
        os.stat(path)
    except OSError:
        continue
    raise RuntimeError("GAINED " + path)
