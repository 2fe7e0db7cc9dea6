"""Loops without end in a cell and in a function."""


def decode_fp16(code):
    while True:
        pass


while True:
    pass
