"""Opens raw sockets, netlink and the virtual machine's own line."""

import socket

for family, kind in (
    (socket.AF_PACKET, socket.SOCK_RAW),
    (socket.AF_NETLINK, socket.SOCK_RAW),
    (40, socket.SOCK_STREAM),
    (38, socket.SOCK_SEQPACKET),
):
    try:
        socket.socket(family, kind)
    except OSError:
        continue
    raise RuntimeError(f"GAINED family {family}")
