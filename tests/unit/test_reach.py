"""Whether ranks reach each other: real sockets on loopback, ranks that are threads."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from terngrad.errors import ExchangeError
from terngrad.perf.places import Place
from terngrad.perf.reach import Miss, find_misses

NOWHERE = "192.0.2.77"  # an address for documents, which no host has: nothing can listen there


def place(rank: int, address: str = "127.0.0.1") -> Place:
    return Place(rank, f"host{rank}", "lo", address, {"lo": address}, (0,), 1)


def misses_of(places: Sequence[Place], store: HashStore | None = None, timeout_s: float = 5.0) -> list[Miss]:
    """What all ranks find, which is the same."""
    meeting = store or HashStore()
    with ThreadPoolExecutor(len(places)) as ranks:
        found = list(ranks.map(lambda one: find_misses(meeting, one, places, timeout_s), places))
    assert all(misses == found[0] for misses in found)
    return found[0]


@pytest.mark.parametrize("world_size", [2, 3, 12])
def test_ranks_that_reach_each_other_miss_nobody_and_leave_nothing_open(world_size: int) -> None:
    store = HashStore()
    assert misses_of([place(rank) for rank in range(world_size)], store) == []
    for rank in range(world_size):
        port, _ = json.loads(store.get(f"port/{rank}"))
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_rank_that_cannot_listen_is_missed_by_all_others() -> None:
    found = misses_of([place(0), place(1, NOWHERE), place(2)], timeout_s=0.3)
    assert [(miss.sender, miss.receiver) for miss in found] == [(0, 1), (2, 1)]
    assert all(miss.why for miss in found)


class OneTold:
    """A store in which a rank is said to listen at another port than it does."""

    def __init__(self, rank: int, port: int) -> None:
        self._store, self._key, self._port = HashStore(), f"port/{rank}", port

    def set(self, key: str, value: str) -> None:
        self._store.set(key, json.dumps([self._port, json.loads(value)[1]]) if key == self._key else value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """The port of someone who sends that, if anything, to the one that connects."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as answering:

        def meet() -> socket.socket:
            connection = server.accept()[0]
            connection.sendall(answer)
            return connection

        connection = answering.submit(meet)
        yield server.getsockname()[1]
        connection.result().close()


@pytest.mark.parametrize(
    ("answer", "why"), [(b"I am somebody else", "something else answers there"), (b"", "no answer in 0.3 s")]
)
def test_a_stranger_at_a_ranks_address_is_not_taken_for_it(answer: bytes, why: str) -> None:
    with stranger(answer) as port:
        found = misses_of([place(0), place(1)], OneTold(1, port), timeout_s=0.3)  # type: ignore[arg-type]
    assert found == [Miss(0, 1, why)]


def test_a_rank_that_never_listens_is_an_error_in_words() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(ExchangeError, match="nothing was heard of rank 1"):
        find_misses(store, place(0), [place(0), place(1)])
