"""Lies about the class of what it returns, by __class__ and by type()."""


class Float:
    __class__ = float

    def hex(self):
        return "nan"


def decode_fp16(code):
    return Float()


def ulp_fp16(x):
    return type("float", (), {"__eq__": lambda a, b: True})()


def range_table(e, m):
    return type("dict", (dict,), {"__eq__": lambda a, b: True})()
