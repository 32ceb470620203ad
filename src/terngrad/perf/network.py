"""What messages cost on a cluster: latency and bandwidth, inside a node and between nodes.

Every worker is a rank. The ranks of a node share its link to the others, and reach each other by a link of their own.
Both links are full duplex. Messages of one round are posted at once, so a round has the latency of one message, and the
time of whatever link it fills longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from terngrad.errors import ConfigurationError


@dataclass(frozen=True)
class Link:
    """A message of b bytes takes latency_s + b / bytes_per_s, and b * cpu_s of the processors at both ends."""

    latency_s: float
    bytes_per_s: float
    cpu_s: float = 0.0  # for a byte that is sent and one that is received: copies, checksums
    busy_s: float = 0.0  # how much longer a round takes while the processors at its ends compute
    ring: Link | None = None  # the same wires as torch's rings use them, where that was measured,
    half_ring: Link | None = None  # and as those that add numbers of 16 bits do

    def __post_init__(self) -> None:
        times = (self.latency_s, self.cpu_s, self.busy_s)
        if not (self.bytes_per_s > 0 and all(time >= 0 for time in times)):
            raise ConfigurationError(f"{self}: its latency and other times must be >= 0, its rate above 0")

    def in_ring(self, halves: bool = False) -> Link:
        """For a step of a ring."""
        return (self.half_ring if halves else None) or self.ring or self

    def changed(self, **changes: float) -> Link:
        """The same but for some figures, in rings too."""
        rings = {name: ring.changed(**changes) for name, ring in self._rings.items()}
        return Link(**{**vars(self), **changes, **rings})

    @property
    def _rings(self) -> dict[str, Link]:
        found = {"ring": self.ring, "half_ring": self.half_ring}
        return {name: ring for name, ring in found.items() if ring is not None}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Link:
        """What `asdict` has made of one."""
        rings = {name: cls.read(found[name]) for name in ("ring", "half_ring") if found.get(name)}
        return cls(**{**found, **rings})

    @classmethod
    def of(cls, bits_per_s: float, latency_s: float = 1e-4) -> Link:
        """Of a rate in bits."""
        return cls(latency_s, bits_per_s / 8)


HERE = Link(0.0, math.inf)  # for what does not leave a device


@dataclass(frozen=True)
class Cluster:
    """Nodes with as many devices each, a worker on every device."""

    num_nodes: int
    between: Link
    devices: int = 1  # of a node
    within: Link = HERE

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.devices < 1:
            raise ConfigurationError(
                f"Cluster(num_nodes={self.num_nodes}, devices={self.devices}): there must be at least one of each"
            )

    @property
    def num_workers(self) -> int:
        return self.num_nodes * self.devices

    def _round(self, leaving: float, staying: float) -> float:
        """So many bytes leave each node, and so many go from a rank to others of its node."""
        away = self.between.latency_s + leaving / self.between.bytes_per_s if leaving else 0.0
        near = self.within.latency_s + staying / self.within.bytes_per_s if staying else 0.0
        return max(away, near)

    def _hop(self, num_bytes: float, halves: bool = False) -> float:
        """One step of a ring over all ranks, those of a node next to each other."""
        used = [self.between] * (self.num_nodes > 1) + [self.within] * (self.devices > 1)
        links = [link.in_ring(halves) for link in used]
        return max((link.latency_s + num_bytes / link.bytes_per_s for link in links if num_bytes), default=0.0)

    def to_all(self, num_bytes: float) -> float:
        """A round in which every rank sends every other one a message of so many bytes."""
        others_away = self.num_workers - self.devices
        return self._round(self.devices * others_away * num_bytes, (self.devices - 1) * num_bytes)

    def around(self, num_bytes: float) -> float:
        """A ring over all ranks, in which everyone's message of so many bytes comes to everyone: N - 1 steps."""
        return (self.num_workers - 1) * self._hop(num_bytes)

    def all_reduce(self, num_bytes: float, *, halves: bool = False) -> float:
        """A ring over all ranks: 2 (N - 1) steps of an N-th each."""
        return 2 * (self.num_workers - 1) * self._hop(num_bytes / self.num_workers, halves)

    def all_reduce_by_nodes(self, num_bytes: float, *, tree: bool = False) -> float:
        """In every node first, then between the nodes, then back to all devices of the node.

        Between the nodes it is a ring; or, as a `tree`, all is sent to one place and back to all, but for two nodes,
        which send each other what they have.
        """
        inside = Cluster(1, self.between, self.devices, self.within).all_reduce(num_bytes)
        if not tree:
            return inside + Cluster(self.num_nodes, self.between).all_reduce(num_bytes)
        crossings = {1: 0, 2: 1}.get(self.num_nodes, 2)
        link = self.between.in_ring()
        return inside + 2 * (self.num_nodes - 1) * link.latency_s + crossings * num_bytes / link.bytes_per_s

    def through_servers(self, pushed: float, pulled: float, num_servers: int) -> float:
        """Every rank sends so many bytes to the servers, each of which has a node of its own, and receives so many."""
        rounds = 0.0
        for num_bytes in (pushed, pulled):
            own = self.devices * num_bytes
            theirs = self.num_workers * num_bytes / num_servers
            rounds += self.between.latency_s + max(own, theirs) / self.between.bytes_per_s
        return rounds
