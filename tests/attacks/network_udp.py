"""Sends datagrams and asks a name server, in the hope that one leaves the machine."""

import socket

try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"stolen", ("127.0.0.1", int("@PORT@")))
    raise RuntimeError("GAINED a datagram")
except OSError:
    pass
try:
    socket.getaddrinfo("localhost.invalid", 80)
    raise RuntimeError("GAINED a name server")
except OSError:
    pass
