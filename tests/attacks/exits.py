"""Ends its own process in every way there is."""

import os

os._exit(0)
# %%
raise SystemExit(0)
# %%
import ctypes

ctypes.string_at(0)
# %%
import os

os.abort()
# %%
import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
# %%
import sys

sys.setrecursionlimit(10**9)


def f():
    f()


f()
