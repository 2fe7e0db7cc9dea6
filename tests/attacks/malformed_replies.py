"""Answers the grader's line with JSON that is deep, wide, not finite or not JSON."""

import os

for text in (
    b"[" * 100_000 + b"\n",
    b"{" + b'"a":{' * 50_000 + b"\n",
    b"9" * 100_000 + b"\n",
    b"NaN\n",
    b"\xff\xfe\n",
    b"\n" * 100,
):
    for descriptor in range(3, 16):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
