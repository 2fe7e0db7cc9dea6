"""Leaves a process behind that has cut every tie, keeps the line open and acts later."""

import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(2)
        os.system("touch @CANARY@/later")
        time.sleep(1000 * 3.14159)
    os._exit(0)
