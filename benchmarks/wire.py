"""What really crossed the wire, by the kernel's counters: those of TCP sockets and those of a network interface.

Socket counters are the bytes that programs handed over, without retransmissions: what `ss -ti` shows. The interface
counts headers and acknowledgements as well, 4 to 5 % more at an MTU of 1500.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terngrad.train.wire import SocketBytes, read_sockets


@dataclass(frozen=True)
class Counts:
    """Bytes sent and received since some moment in the past; subtract two of them."""

    socket_sent: int
    socket_received: int
    interface_sent: int
    interface_received: int

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self.values(), other.values(), strict=True)))

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, int, int, int]:
        return self.socket_sent, self.socket_received, self.interface_sent, self.interface_received


ZERO = Counts(0, 0, 0, 0)


def read_counts(interface: str) -> Counts:
    """The counters of this process's TCP sockets, and of the interface in this process's network namespace."""
    return Counts(*_socket_bytes(), *_interface_bytes(interface))


def _socket_bytes() -> tuple[int, int]:
    total = sum(read_sockets().values(), SocketBytes())
    return total.sent, total.received


def _interface_bytes(interface: str) -> tuple[int, int]:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            columns = numbers.split()
            return int(columns[8]), int(columns[0])
    raise RuntimeError(f"no network interface {interface!r} in this namespace")
