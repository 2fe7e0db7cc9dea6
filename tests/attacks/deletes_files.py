"""Deletes and overwrites the canary, its folder and its neighbours."""

import os
import shutil

shutil.rmtree("@CANARY@", ignore_errors=True)
for action in (
    os.unlink,
    os.rmdir,
    lambda path: open(path, "w").write("gone"),
    lambda path: os.rename(path, path + "x"),
):
    for path in ("@CANARY@/file.txt", "@CANARY@", "@OUT@"):
        try:
            action(path)
        except OSError:
            pass
