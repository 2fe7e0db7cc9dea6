"""Asks the kernel for new namespaces, mounts, roots, and for its rights back."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
gained = [
    name
    for name, result in (
        ("unshare", libc.unshare(0x10000000)),
        ("setns", libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)),
        ("mount", libc.mount(b"none", b"/", None, 4096 | 32, None)),
        ("umount", libc.umount2(b"/tmp", 2)),
        ("chroot", libc.chroot(b"/tmp")),
        ("pivot_root", libc.syscall(155, b".", b".")),
        ("mount_setattr", libc.syscall(442, -100, b"/", 0, ctypes.create_string_buffer(32), 32)),
        ("clone", libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)),
        ("setuid", libc.setuid(0)),
        ("sethostname", libc.sethostname(b"mine", 4)),
        ("bpf", libc.syscall(321, 0, 0, 0)),
        ("keyctl", libc.syscall(250, 0, 0, 0)),
    )
    if result != -1
]
if gained:
    raise RuntimeError(f"GAINED {gained}")
