"""Forks faster than anybody can count, each parent leaving at once."""

import os

while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
