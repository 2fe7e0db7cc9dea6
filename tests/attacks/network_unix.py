"""Connects to sockets of the host that are no network: abstract ones, named ones, the bus."""

import socket

for name in (
    "\0@ABSTRACT@",
    "@CANARY@/socket",
    "/run/dbus/system_bus_socket",
    "/var/run/docker.sock",
):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
    except OSError:
        continue
    raise RuntimeError("GAINED " + repr(name))
