"""Looks for the answers in compiled form, in caches and in the line cache."""

import glob
import linecache

for pattern in ("/**/lesson01*.pyc", "/**/__pycache__/judge*.pyc", "/tmp/**/*.pyc"):
    for path in glob.iglob(pattern, recursive=True):
        raise RuntimeError("GAINED " + path)
if any("lesson01" in name for name in linecache.cache):
    raise RuntimeError("GAINED the line cache")
