"""A plain TCP stream, to see what a link carries: `stream receive ADDRESS SECONDS`, `stream send ADDRESS PORT`.

The receiver prints its port when it listens, and at the end the bytes per second that arrived from the first byte on.
It ends the connection when the time is over, so that nothing has to drain, however slow the link is.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

_CHUNK = 1 << 18
_SILENCE_S = 10.0  # after so long without a byte there is no stream


def main() -> None:
    role, address, argument = sys.argv[1:]
    if role == "receive":
        receive(address, float(argument))
    else:
        send(address, int(argument))


def receive(address: str, seconds: float) -> None:
    """Bytes per second of one connection."""
    buffer = bytearray(_CHUNK)
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        server.settimeout(_SILENCE_S)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_SILENCE_S)
        connection.recv_into(buffer)
        total, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            total += connection.recv_into(buffer)
    print(total / elapsed, flush=True)


def send(address: str, port: int) -> None:
    """Sends zeros until the receiver has enough."""
    chunk = bytes(_CHUNK)
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection((address, port), timeout=_SILENCE_S) as connection,
    ):
        while True:
            connection.sendall(chunk)
