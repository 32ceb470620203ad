"""System calls about namespaces, which Python has from 3.12 on only, and children that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

# From the kernel's interface: linux/sched.h, linux/prctl.h, linux/capability.h, linux/mount.h.
NEWNS, NEWUSER, NEWPID, NEWNET = 0x0002_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000
_PR_SET_PDEATHSIG, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 47, 2
_CAPABILITY_VERSION_3, _CAP_NET_ADMIN = 0x2008_0522, 12
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(*numbers: int) -> None:
    _call("prctl", *(ctypes.c_ulong(number) for number in (*numbers, *(5 - len(numbers)) * (0,))))


def unshare(flags: int) -> None:
    """New namespaces for this process; one of processes is for its children only, the first of which is its init."""
    _call("unshare", flags)


def setns(descriptor: int, flag: int) -> None:
    """Enters a namespace; one of processes is entered by the children only."""
    _call("setns", descriptor, flag)


def become_itself_in_user_namespace(uid: int, gid: int) -> None:
    """Maps the user of a new user namespace to the same numbers outside, and lets it configure networks.

    A process has all rights in its new user namespace, but the programs it starts have none unless they run as user 0
    or are given some: hence the ambient capability, for ip and tc.
    """
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        _write(f"/proc/self/{name}", text)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable, each in two halves of 32 bits
    _call("capget", header, sets)
    effective, permitted, _, *upper_half = struct.unpack("6I", sets.raw)
    _call("capset", header, struct.pack("6I", effective, permitted, permitted, *upper_half))
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_NET_ADMIN)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise OSError(error.errno, f"writing {text!r} to {path}: {error.strerror}") from error


def unshare_mounts() -> None:
    """A mount namespace for this process: what is mounted from here on is not seen outside."""
    unshare(NEWNS)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def mount_proc() -> None:
    """Mounts a /proc that shows this process's namespace of processes."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def mount_text(path: str, text: str) -> None:
    """Puts a text in the place of a file, without a file: it lives in a file system that has no other name any more."""
    folder = "/proc"  # a folder that is everywhere; what it holds is covered for a moment only
    _mount("tmpfs", folder, "tmpfs", 0)
    try:
        source = Path(folder, "text")
        source.write_text(text)
        _mount(str(source), path, "", _MS_BIND)
    finally:
        _call("umount2", folder.encode(), _MNT_DETACH)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def fork_bound(work: Callable[[], None]) -> int:
    """A child that does the work, and that the kernel kills when this process ends, however it ends."""
    gate, opener = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(opener)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.read(gate, 1):  # nothing comes if the parent died before it was watched
                os.close(gate)
                work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(gate)
    os.write(opener, b"!")
    os.close(opener)
    return child
