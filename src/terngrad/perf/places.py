"""Where ranks are: hosts, interfaces and settings, as each rank sees its own and tells the others.

It is told through the store in which ranks meet, before any of them opens a connection to another: an interface that
the others cannot reach is found here, and not by waiting for a timeout.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from terngrad.errors import ExchangeError

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # of Linux: the address of an interface, and its network's mask
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
    address: str  # "" if there is no such interface
    interfaces: Mapping[str, str]  # all that have an address, loopback included
    cores: tuple[int, ...]  # that this process may use
    threads: int  # of torch
    settings: Mapping[str, str] = field(default_factory=dict)  # of the environment, that matter here
    masks: Mapping[str, str] = field(default_factory=dict)  # of the interfaces' networks; none in older files

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith(_LOOPBACK)

    @property
    def node(self) -> tuple[str, ...]:
        """The same for ranks of one host, or of one namespace of it: all addresses. Some of them hosts may share."""
        return tuple(sorted(address for address in self.interfaces.values() if not address.startswith(_LOOPBACK)))

    @property
    def others(self) -> list[str]:
        """The interfaces besides the one that is used, and loopback."""
        found = {name for name, address in self.interfaces.items() if address.startswith(_LOOPBACK)}
        return [name for name in self.interfaces if name not in found | {self.interface}]

    @property
    def network(self) -> str | None:
        """That others reach it by, if that can be told."""
        return self.network_of(self.interface)

    def network_of(self, interface: str) -> str | None:
        """Such as 10.0.0.0/8."""
        if interface not in self.interfaces or interface not in self.masks:
            return None
        return str(ipaddress.ip_interface(f"{self.interfaces[interface]}/{self.masks[interface]}").network)

    def describe(self) -> dict[str, Any]:
        """For JSON; `read` makes an equal one of it."""
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Place:
        return cls(**{**found, "cores": tuple(found["cores"])})


def find_place(rank: int) -> Place:
    """This process's, as gloo sees it."""
    interfaces = _interfaces(_SIOCGIFADDR)
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]  # of several gloo takes all; one says where it is
    address = interfaces.get(wanted, "") if wanted else _own_address()
    return Place(
        rank=rank,
        host=socket.gethostname(),
        interface=wanted or next((name for name, own in interfaces.items() if own == address), ""),
        address=address,
        interfaces=interfaces,
        cores=_cores(),
        threads=torch.get_num_threads(),
        settings={key: os.environ[key] for key in _WATCHED if key in os.environ},
        masks=_interfaces(_SIOCGIFNETMASK),
    )


def tell_all(store: Store, place: Place, world_size: int) -> list[Place]:
    """Everyone's, by rank."""
    found = share(store, "place", place.rank, json.dumps(place.describe()), world_size)
    return [Place.read(json.loads(told)) for told in found]


def share(store: Store, what: str, rank: int, text: str, world_size: int) -> list[str]:
    """Everyone's text, by rank. The first rank, which may be where the store is, stays until all have read it."""
    store.set(f"{what}/{rank}", text)
    found = [_read(store, f"{what}/{other}", other) for other in range(world_size)]
    store.set(f"{what}/read/{rank}", "")
    if rank == 0:
        for other in range(world_size):
            _read(store, f"{what}/read/{other}", other)
    return found


def _read(store: Store, key: str, rank: int) -> str:
    try:
        return store.get(key).decode()
    except RuntimeError as error:  # torch's errors of stores are of many kinds
        raise ExchangeError(f"nothing was heard of rank {rank}: {error}; was it started?") from error


def _own_address() -> str:
    """What this host's name stands for, or loopback where nothing can listen there: as gloo does by itself."""
    try:
        address = socket.gethostbyname(socket.gethostname())
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return "127.0.0.1"
    return address


def _cores() -> tuple[int, ...]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _interfaces(asked: int) -> dict[str, str]:
    """Names and addresses, or whatever else is asked for, where the system is Linux."""
    found: dict[str, str] = {}
    if not sys.platform.startswith("linux"):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, asked, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
