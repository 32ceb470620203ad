"""Whether ranks reach each other at the addresses they have, tried before anything waits for a connection.

Every rank listens at its own address, tells the port through the store, and connects to others. Who is connected to
gets a token of the listener's: hosts may share an address, and then a rank finds itself, or a stranger, there. gloo
connects each pair from one end only, which end depends on their addresses; here both ends try.
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from terngrad.perf.places import Place, Store, share
from terngrad.perf.wires import pairs_of

TIMEOUT_S = 5.0  # of a connection, and of what is said over it
MOST_AT_ONCE = 64  # connections that a rank tries
_TOKEN_BYTES = 16


@dataclass(frozen=True)
class Miss:
    """One rank that did not reach another."""

    sender: int
    receiver: int
    why: str


def find_misses(store: Store, place: Place, places: Sequence[Place], timeout_s: float = TIMEOUT_S) -> list[Miss]:
    """On all ranks, which all get the same. `places` are everyone's; of many ranks not all pairs are tried."""
    token, count = secrets.token_hex(_TOKEN_BYTES // 2), len(places)
    with _listening(place.address, token) as port:
        told = share(store, "port", place.rank, json.dumps([port, token]), count)  # from here on everyone listens
        targets = [b if a == place.rank else a for a, b in pairs_of(count) if place.rank in (a, b)]
        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(targets))) as pool:
            reasons = list(pool.map(lambda rank: _why_not(places[rank].address, told[rank], timeout_s), targets))
        mine = [asdict(Miss(place.rank, rank, why)) for rank, why in zip(targets, reasons, strict=True) if why]
        everyone = share(store, "misses", place.rank, json.dumps(mine), count)  # and until here
    return [Miss(**one) for found in everyone for one in json.loads(found)]


def _why_not(address: str, told: str, timeout_s: float) -> str:
    """Why the one who told this port and token cannot be reached; "" if it can."""
    port, token = json.loads(told)
    try:
        with (
            socket.create_connection((address, port), timeout=timeout_s) as connection,
            connection.makefile("rb") as answer,
        ):
            heard = answer.read(_TOKEN_BYTES)
    except TimeoutError:
        return f"no answer in {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if heard == token.encode() else "something else answers there"


class _Server(socketserver.TCPServer):
    """Sends its token to whoever connects."""

    request_queue_size = 1024  # every rank may connect to the first at once

    def __init__(self, address: str, token: str) -> None:
        self.token = token.encode()
        super().__init__((address, 0), _Answer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who went away before the answer has a reason to tell."""


class _Answer(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.request.sendall(self.server.token)


@contextmanager
def _listening(address: str, token: str) -> Iterator[int]:
    """Answers at a port of this address meanwhile; 0, which nobody reaches, if nothing can listen there."""
    try:
        server = _Server(address, token)
    except OSError:
        yield 0
        return
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
