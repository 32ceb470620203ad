"""Where ranks are: hosts, interfaces and settings, as each rank sees its own and tells the others.

It is told through the store in which ranks meet, before any of them opens a connection to another: an interface that
the others cannot reach is found here, and not by waiting for a timeout.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

_SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
_LOOPBACK = "127."
_WATCHED = (
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_DEBUG",
    "OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip


class Store(Protocol):
    """What is used of torch's, which has no type that a checker can see."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class Place:
    """One rank's."""

    rank: int
    host: str
    interface: str  # that others reach it by; "" if that cannot be told
    address: str
    interfaces: Mapping[str, str]  # all that have an address, loopback included
    cores: int  # that this process may use
    threads: int  # of torch
    settings: Mapping[str, str] = field(default_factory=dict)  # of the environment, that matter here

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith(_LOOPBACK)

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def find_place(rank: int, backend: str) -> Place:
    """This process's."""
    interfaces = _interfaces()
    variable = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    wanted = os.environ.get(variable, "")
    address = interfaces.get(wanted) or _own_address()
    name = wanted or next((found for found, own in interfaces.items() if own == address), "")
    return Place(
        rank=rank,
        host=socket.gethostname(),
        interface=name,
        address=address,
        interfaces=interfaces,
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        settings={key: os.environ[key] for key in _WATCHED if key in os.environ},
    )


def tell_all(store: Store, place: Place, world_size: int) -> list[Place]:
    """Everyone's, by rank. The first rank, which may be where the store is, stays until all have read it."""
    store.set(f"place/{place.rank}", json.dumps(place.describe()))
    found = [Place(**json.loads(store.get(f"place/{rank}"))) for rank in range(world_size)]
    store.set(f"read/{place.rank}", "")
    if place.rank == 0:
        for rank in range(world_size):
            store.get(f"read/{rank}")
    return found


def _own_address() -> str:
    """What this host's name stands for, which is what gloo takes unless it is told."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _interfaces() -> dict[str, str]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
