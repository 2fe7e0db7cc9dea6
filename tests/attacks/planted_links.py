"""Plants links in its folder, in the hope that somebody with more rights follows them later."""

import os

for name, target in (
    ("result.json", "@CANARY@/file.txt"),
    ("grades.csv", "@OUT@/grades.csv"),
    ("loop", "loop"),
):
    os.symlink(target, "/tmp/" + name)
try:
    open("/tmp/result.json", "w").write("gone")
except OSError:
    pass
