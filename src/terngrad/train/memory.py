"""Keeps glibc from giving memory back that the next step will want again.

A large tensor is otherwise mapped anew each time, and every page of it faults: steps are slower, and by chance, since
glibc moves its thresholds while a program runs.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_NEVER = -1


def keep_memory() -> None:
    """From here on, in this process; nothing changes where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
