"""Prints without end, to every stream there is."""

import os
import sys

for _ in range(200):
    print("x" * 100_000)
    sys.stderr.write("x" * 100_000)
    for descriptor in (1, 2):
        os.write(descriptor, b"x" * 100_000)
