"""Reads the environment of the grader for tokens."""

import os

texts = [str(os.environ)]
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            texts.append(open(f"/proc/{name}/environ").read())
            texts.append(open(f"/proc/{name}/cmdline").read())
        except OSError:
            pass
if "@SECRET@" in "".join(texts):
    raise RuntimeError("GAINED a secret")
