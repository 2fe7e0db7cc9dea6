"""Runs programs that give the rights of their owner."""

import subprocess

for command in (
    ["su", "-c", "id -u"],
    ["sudo", "-n", "id", "-u"],
    ["mount"],
    ["newuidmap"],
    ["passwd", "-S"],
):
    try:
        done = subprocess.run(command, capture_output=True, timeout=2, text=True)
    except (OSError, subprocess.TimeoutExpired):
        continue
    if done.returncode == 0 and done.stdout.strip() == "0":
        raise RuntimeError(f"GAINED root by {command[0]}")
