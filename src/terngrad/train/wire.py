"""What really crossed the wire, by the kernel's counters of this process's TCP sockets: what `ss -ti` shows.

Counted are the bytes that programs handed over, whether they have left the machine yet or not, without headers and
retransmissions. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

# Byte offsets in struct tcp_info, a stable part of Linux's interface (include/uapi/linux/tcp.h).
_RECEIVED, _NOT_SENT_YET, _SENT, _RETRANSMITTED = 128, 144, 200, 208
_TCP_INFO_BYTES = 256
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True)
class SocketBytes:
    """What one or more sockets have sent and received since they were opened."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.sent + other.sent, self.received + other.received)

    def __sub__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.sent - other.sent, self.received - other.received)


def read_sockets() -> dict[str, SocketBytes]:
    """The counters of every TCP connection that this process holds, by the kernel's name of it."""
    found = {}
    for entry in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - names are enough, and this is called in training
        with contextlib.suppress(OSError):  # closed while we looked, or no TCP connection
            name = os.readlink(_DESCRIPTORS / entry)  # noqa: PTH115 - likewise
            if name.startswith("socket:"):
                found[name] = _read(int(entry))
    return found


def _read(descriptor: int) -> SocketBytes:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (waiting,) = struct.unpack_from("<I", info, _NOT_SENT_YET)
    sent, retransmitted = struct.unpack_from("<QQ", info, _SENT)
    (received,) = struct.unpack_from("<Q", info, _RECEIVED)
    return SocketBytes(sent - retransmitted + waiting, received)


class SocketMeter:
    """Adds up what all TCP sockets of this process move between `start` and `stop`, any number of times.

    A socket opened in between counts from its first byte. One that is closed keeps what it had at the last look.
    """

    def __init__(self) -> None:
        self.total = SocketBytes()
        self._last: dict[str, SocketBytes] | None = None

    def start(self) -> None:
        """From here on it counts; what moved since the last `stop` does not."""
        self._last = read_sockets()

    def read(self) -> SocketBytes:
        """The total up to now."""
        if self._last is not None:
            now = read_sockets()
            for name, count in now.items():
                moved = count - self._last.get(name, SocketBytes())
                # A name that came back with less is another socket.
                self.total += moved if min(moved.sent, moved.received) >= 0 else count
            self._last = now
        return self.total

    def stop(self) -> SocketBytes:
        """The total up to now; what moves from here on does not count."""
        total = self.read()
        self._last = None
        return total
