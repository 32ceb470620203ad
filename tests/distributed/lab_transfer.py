"""`lab_transfer.py BYTES`: host 1 sends that many over one TCP connection to host 0, which prints how many came."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

ADDRESS = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
CHUNK = bytes(1 << 16)


def receive() -> int:
    total = 0
    with socket.create_server(ADDRESS) as server:
        connection, _ = server.accept()
        with connection:
            while count := len(connection.recv(len(CHUNK))):
                total += count
    return total


def connect(attempts: int = 400) -> socket.socket:
    """A connection to a host whose program may still be starting."""
    for _ in range(attempts):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(ADDRESS)
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at {ADDRESS}")


def send(num_bytes: int) -> None:
    with connect() as connection:
        for start in range(0, num_bytes, len(CHUNK)):
            connection.sendall(CHUNK[: num_bytes - start])


if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        print(receive(), flush=True)
    else:
        send(int(sys.argv[1]))
