"""Changes the package, Python and torch on disk for those who come after."""

import os
import site

import torch

import mptutor
import mptutor.checks.probes

places = [mptutor.__file__, mptutor.checks.probes.__file__, torch.__file__, os.__file__]
places += [os.path.join(folder, "sitecustomize.py") for folder in site.getsitepackages()]
for path in places:
    for action in (
        lambda: open(path, "a").write("\n"),
        lambda: os.chmod(path, 0o777),
        lambda: os.rename(path, path + "x"),
    ):
        try:
            action()
        except OSError:
            continue
        raise RuntimeError("GAINED " + path)
