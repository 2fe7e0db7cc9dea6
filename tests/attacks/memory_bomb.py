"""Takes all the memory it can get, and keeps it."""

kept = []
while True:
    try:
        kept.append(bytearray(b"x") * (1 << 22))
    except MemoryError:
        pass
