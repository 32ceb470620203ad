"""A plain TCP stream, to see what a link carries: `stream.py receive ADDRESS PORT`, `stream.py send ADDRESS PORT S`.

The receiver prints the bytes per second that arrived, from its first byte to its last.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

CHUNK = 1 << 18


def receive(address: str, port: int) -> float:
    """Bytes per second of one connection."""
    with socket.create_server((address, port)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
        buffer = bytearray(CHUNK)
        with connection:
            total, start = connection.recv_into(buffer), time.perf_counter()
            first = total
            while count := connection.recv_into(buffer):
                total += count
    return (total - first) / (time.perf_counter() - start)


def send(address: str, port: int, seconds: float) -> None:
    """Sends zeros for so long."""
    chunk = bytes(CHUNK)
    with _connect(address, port) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(chunk)


def _connect(address: str, port: int, attempts: int = 400) -> socket.socket:
    """A connection to a receiver that may still be starting."""
    for _ in range(attempts):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((address, port), timeout=30)
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at {address}:{port}")


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(receive(sys.argv[2], int(sys.argv[3])))
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
