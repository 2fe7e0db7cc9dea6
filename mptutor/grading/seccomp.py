"""System calls that no exercise needs, taken away.

Namespaces decide what a process can see; a seccomp filter decides what it can ask the kernel for.
The filter is a small program in the kernel's own bytecode that runs before every system call and
sees its number and arguments. This one is a list of refusals: what would make new namespaces or
mounts, look into other processes, load programs into the kernel, or hold memory that no limit
counts. Everything else goes through, since Python and torch use a few hundred calls.

A list of permissions, as container runtimes keep, would be tighter. It also breaks with every new
version of libc, and here the namespaces carry the weight.

Sources: Linux ``include/uapi/linux/{filter,seccomp,audit}.h``; the numbers are those of the tables
``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# name: (number on x86_64, number on aarch64). From 424 on they are the same everywhere.
_REFUSED = {
    # namespaces, mounts, roots
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # programs in the kernel, and doors into it that have often been left open
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # memory that outlives a process, or that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
}
# machine: (column of the table, AUDIT_ARCH_*, clone, socket)
_MACHINES = {"x86_64": (0, 0xC000003E, 56, 41), "aarch64": (1, 0xC00000B7, 220, 198)}
_CLONE3 = 435
_X32 = 0x40000000  # x86_64 numbers with this bit belong to another table
_CLONE_NEW_ANYTHING = 0x7E020080
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets into struct seccomp_data
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls(libc: ctypes.CDLL) -> None:
    """Install the filter in this process, for good. Needs ``no_new_privs``.

    Raises
    ------
    OSError
        If the kernel has no seccomp, or the processor is not one of those with a table here.
    """
    code = build(platform.machine())
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))


def build(machine: str) -> bytes:
    """Return the filter for a processor as bytecode, eight bytes an instruction.

    Raises
    ------
    OSError
        If the processor is not one of those with a table here.
    """
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp: no table for {machine}, only {[*_MACHINES]}")
    column, arch, clone, socket = _MACHINES[machine]
    refuse = _refusal(errno.EPERM)
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQ, 1, 0, arch),  # a 32-bit call in a 64-bit process would use another table
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GE, 0, 1, _X32),
        refuse,
        (_JUMP_EQ, 0, 1, _CLONE3),  # hides its flags behind a pointer; libc falls back to clone
        _refusal(errno.ENOSYS),
    ]
    for numbers in _REFUSED.values():
        code += [(_JUMP_EQ, 0, 1, numbers[column]), refuse]
    code += [
        (_JUMP_EQ, 0, 4, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_SET, 0, 1, _CLONE_NEW_ANYTHING),
        refuse,
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQ, 0, 2 + len(_FAMILIES), socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *[(_JUMP_EQ, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)],
        refuse,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _refusal(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, 0x00050000 | number)
