"""A sandbox made of Linux namespaces, without help from root and without a container engine.

A process that enters it sees a file system of its own, put together from nothing: a few folders of
the system and of Python, read-only, and an empty ``/tmp`` in memory. What was not put in is not
there, so no list of things to hide can be too short. It sees no process but its own, since it is
number 1 of its own process namespace, and when number 1 ends the kernel ends all the others. Its
network has no interface. At the end it gives up every capability and the system calls that could
win one back (`mptutor.grading.seccomp`).

The kernel lets an ordinary user do all this inside a user namespace. Root goes the same way, after
becoming *nobody*: Linux does not hold root to a limit on processes, so a fork bomb started by root
has no end. The one thing root does first is to take hold of the folders, which may lie in a place
that nobody may enter.

It takes two steps, because a process namespace begins with the next child: `enter` in the parent
that will watch, `lock` in the child. Needs Linux 5.14.

Sources: the manual pages namespaces(7), user_namespaces(7), pivot_root(2), mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mptutor.grading.limits import Limits
from mptutor.grading.seccomp import refuse_system_calls

NOBODY = 65534

_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_FROM_FD = 4
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT = 24, 28, 47
_CAPABILITY_VERSION_3 = 0x20080522
_NOROOT_LOCKED = 0x2F

_libc = ctypes.CDLL(None, use_errno=True)

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class View:
    """What the sandbox shows: ``visible`` folders, but nothing inside of the ``hidden`` ones."""

    visible: tuple[str, ...]
    hidden: tuple[str, ...] = ()


Trees = Mapping[str, int]


def enter(view: View) -> Trees:
    """Leave the host's namespaces behind. The next child is number 1 in its own.

    Returns
    -------
    Mapping[str, int]
        The folders of the view by path, as file descriptors, for `lock`.

    Raises
    ------
    OSError
        If the kernel refuses; its text names the step.
    """
    if os.geteuid() == 0:
        trees = _take_hold(view)
        _become_nobody()
        _unshare()
        return trees
    _unshare()
    return _take_hold(view)


def lock(view: View, trees: Trees, limits: Limits) -> None:
    """Build the file system, move into it, and give up the right to do such things.

    Raises
    ------
    OSError
        If the kernel refuses; its text names the step.
    """
    _check("end with the supervisor", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    # A kernel that runs out of memory should end this process first.
    Path("/proc/self/oom_score_adj").write_text("1000")
    _build_root("/tmp", view, trees, limits)
    _move_into("/tmp")
    limits.apply()
    _drop_capabilities()
    _check("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    refuse_system_calls(_libc)


def _take_hold(view: View) -> dict[str, int]:
    """Clone the mounts of everything that will be visible, read-only."""
    wanted = [*_SYSTEM_FOLDERS, *_SYSTEM_FILES, *_DEVICES, *view.visible]
    trees = {}
    for path in _shown_by_no_other(wanted, view.hidden):
        if not os.path.exists(path) or (path in _SYSTEM_FOLDERS and os.path.islink(path)):
            continue
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
        tree = _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
        _check(f"open_tree {path}", tree)
        attributes = _ATTR_RDONLY | _ATTR_NOSUID
        _set_attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes)
        trees[path] = tree
    return trees


def _shown_by_no_other(visible: Iterable[str], hidden: Iterable[str]) -> list[str]:
    """Return the visible paths that no other one brings along, outer ones first.

    A path brings along all that lies below it, down to the next hidden one.
    """
    covers = {Path(path) for path in hidden}
    kept: set[Path] = set()
    for path in sorted(map(Path, visible), key=_depth):
        nearest = next((p for p in (path, *path.parents) if p in kept | covers), None)
        if nearest not in kept:
            kept.add(path)
    return [str(path) for path in sorted(kept, key=_depth)]


def _depth(path: str | Path) -> int:
    return len(Path(path).parts)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Changing the user makes a process's /proc entries root's; the id maps are written there.
    _check("dumpable", _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check("unshare", _libc.unshare(_NEW_NAMESPACES))
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {uid} 1")
    (own / "gid_map").write_text(f"{gid} {gid} 1")
    private = _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _check("make the mounts private", private)


def _build_root(root: str, view: View, trees: Trees, limits: Limits) -> None:
    _tmpfs(root, "mode=755,size=1m,nr_inodes=4k")
    _tmpfs(root + "/tmp", f"mode=1777,size={limits.disk_bytes},nr_inodes=16k")
    for path in _SYSTEM_FOLDERS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
    for path in sorted([*trees, *view.hidden], key=_depth):
        if path in trees:
            _place(trees[path], root + path)
        elif os.path.isdir(root + path):
            _tmpfs(root + path, "mode=755,size=1m,nr_inodes=1k")
    os.symlink("/tmp", root + "/dev/shm")
    os.symlink("/proc/self/fd", root + "/dev/fd")
    entry = f"student:x:{os.geteuid()}:{os.getegid()}::/tmp:/bin/sh\n"
    Path(root, "etc/passwd").write_text(entry)
    os.mkdir(root + "/proc")
    _mount("proc", root + "/proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
    for path in ("", *view.hidden):
        if os.path.ismount(root + path):
            _set_attributes(_AT_FDCWD, os.fsencode(root + path), 0, _ATTR_RDONLY | _ATTR_NOSUID)


def _place(tree: int, path: str) -> None:
    """Mount a tree taken hold of earlier, on a folder or file made for it."""
    is_folder = os.path.isdir(f"/proc/self/fd/{tree}")
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        Path(path).touch()
    target = os.fsencode(path)
    moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target, _MOVE_MOUNT_FROM_FD)
    _check(f"move_mount {path}", moved)
    os.close(tree)


def _move_into(root: str) -> None:
    os.chdir(root)
    _check("pivot_root", _libc.pivot_root(b".", b"."))
    # The old root now lies on top of the new one. Detached, nothing leads there.
    _check("detach the old root", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/tmp")


def _drop_capabilities() -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _check("drop from the bounding set", _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
    _check("securebits", _libc.prctl(_PR_SET_SECUREBITS, _NOROOT_LOCKED, 0, 0, 0))
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check("drop capabilities", _libc.capset(header, bytes(24)))


def _tmpfs(path: str, options: str, flags: int = 0) -> None:
    os.makedirs(path, exist_ok=True)
    _mount("tmpfs", path, flags | _MS_NOSUID | _MS_NODEV, options)


def _mount(kind: str, path: str, flags: int, options: str) -> None:
    name = kind.encode()
    mounted = _libc.mount(name, os.fsencode(path), name, flags, options.encode())
    _check(f"mount {kind} on {path}", mounted)


def _set_attributes(folder: int, path: bytes, flags: int, attributes: int) -> None:
    """Call mount_setattr(2) with ``struct mount_attr``: set, clear, propagation, user namespace."""
    attr = struct.pack("=4Q", attributes, 0, 0, 0)
    done = _libc.syscall(_MOUNT_SETATTR, folder, path, flags, attr, len(attr))
    _check("mount_setattr", done)


def _check(step: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
