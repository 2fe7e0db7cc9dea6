"""Connects to a server on this machine, by IPv4 and by IPv6."""

import socket

for address in (("127.0.0.1", int("@PORT@")), ("::1", int("@PORT@"))):
    try:
        socket.create_connection(address, timeout=0.5).sendall(b"stolen")
    except OSError:
        continue
    raise RuntimeError("GAINED a connection")
