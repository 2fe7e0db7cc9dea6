"""Sends answers in forms that the packing never writes, to break whoever unpacks them."""

import mptutor.grading.child as child

odd = [
    {"int": "0x" + "f" * 100_000},
    {"tensor": {"dtype": [], "shape": [-1], "bytes": "!"}},
    {"dtype": {}},
    {"float": "1e999"},
    {"dict": {"a": {"dict": {"b": 1.5}}}},
    {"tensor": {"dtype": "float32", "shape": [2**62, 0], "bytes": ""}},
    1.5,
    [],
    {"unknown": 3},
]
child.try_out = lambda *args: {"value": odd[hash(str(args)) % len(odd)]}


def decode_fp16(code):
    return 1.0


def ulp_fp16(x):
    return 1.0


def range_table(e, m):
    return {}
