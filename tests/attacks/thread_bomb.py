"""Starts threads that never end."""

import threading
import time

while True:
    try:
        threading.Thread(target=time.sleep, args=(1000,)).start()
    except (RuntimeError, MemoryError):
        time.sleep(0.01)
