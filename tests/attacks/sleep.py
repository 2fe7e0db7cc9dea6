"""Sleeps, stops itself, waits for input and for a lock that never opens."""

import os
import signal
import sys
import threading

sys.stdin.read()
os.kill(os.getpid(), signal.SIGSTOP)
lock = threading.Lock()
lock.acquire()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
lock.acquire()
