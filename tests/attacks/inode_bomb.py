"""Makes files without end, deep folders and long names."""

import os

try:
    for i in range(1_000_000):
        open(f"/tmp/{i}", "w").close()
except OSError:
    pass
try:
    for i in range(100_000):
        os.mkdir("d")
        os.chdir("d")
except OSError:
    pass
