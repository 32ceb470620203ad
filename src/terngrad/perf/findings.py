"""What is wrong with a cluster: who cannot be reached, what is set oddly, and who holds the others up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from terngrad.perf.diagnosis import cores_for, in_bits
from terngrad.perf.places import Place
from terngrad.perf.probes import Speeds
from terngrad.perf.reach import Miss
from terngrad.perf.wires import Wire

SLOW_HOST = 1.3  # times the median rank: as slow as that it holds all others up
SLOW_LINK = 0.5  # of the median rank's rate
SLOW_THREADS = 1.3  # times one thread alone

_HARMFUL = {
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "every collective is checked against all other ranks",
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for, so that nothing overlaps",
    ("NCCL_IB_DISABLE", "1"): "InfiniBand is not used",
    ("NCCL_P2P_DISABLE", "1"): "devices of a node talk through the host",
    ("NCCL_SHM_DISABLE", "1"): "processes of a node talk through sockets",
    ("NCCL_DEBUG", "TRACE"): "NCCL writes a line for everything it does",
}


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    what: str  # a word for programs
    text: str  # what it is, and what to do
    ranks: tuple[int, ...]
    fatal: bool = False  # nothing works like that


# Who cannot be reached


def unreachable(places: Sequence[Place]) -> list[Finding]:
    """Ranks whose address shows that others cannot reach them: there is no use in trying to connect."""
    found = [_no_interface(place) for place in places if not place.address]
    found += [
        _on_loopback(place)
        for place in places
        if place.is_loopback and any(other.node != place.node for other in places)
    ]
    return sorted(found, key=lambda finding: finding.ranks) + _same_addresses(places)


def _no_interface(place: Place) -> Finding:
    other = f"only {', '.join(place.others)}" if place.others else "and none but loopback"
    do = "set GLOO_SOCKET_IFNAME to one of these" if place.others else "give it one that other hosts reach"
    return _fatal(f"{_there(place)} has no interface {place.interface}, {other}; {do}", [place])


def _on_loopback(place: Place) -> Finding:
    name = place.others[0] if place.others else "NAME, once it has an interface that others reach"
    return _fatal(
        f"{_there(place)} is reached by {place.interface or 'loopback'} ({place.address}), which no other host can; "
        f"set GLOO_SOCKET_IFNAME={name} there",
        [place],
    )


def _same_addresses(places: Sequence[Place]) -> list[Finding]:
    """Ranks of different nodes with one address, as bridges of containers have: each finds itself there."""
    found = []
    for address in dict.fromkeys(place.address for place in places if place.address and not place.is_loopback):
        sharing = [place for place in places if place.address == address]
        if len({place.node for place in sharing}) > 1:
            hosts = ", ".join(dict.fromkeys(place.host for place in sharing))
            text = (
                f"{_ranks([place.rank for place in sharing])} on different hosts ({hosts}) have the same address, "
                f"{_way(sharing[0])}, so that none reaches another; {_own_address(sharing)}"
            )
            found.append(_fatal(text, sharing))
    return found


def unreached(places: Sequence[Place], misses: Sequence[Miss]) -> list[Finding]:
    """Ranks to which a connection was tried, and could not be made."""
    found = []
    for place in places:
        missed = [miss for miss in misses if miss.receiver == place.rank]
        reasons = {why: [miss.sender for miss in missed if miss.why == why] for why in {miss.why for miss in missed}}
        if missed:
            told = " and ".join(f"from {_ranks(senders)} ({why})" for why, senders in sorted(reasons.items()))
            text = f"{_there(place)} cannot be reached by {_way(place)} {told}; {_reachable(place)}"
            found.append(_fatal(text, [place]))
    return found


def _own_address(places: Sequence[Place]) -> str:
    names = dict.fromkeys(name for place in places for name in place.others)
    if not names:
        return "give every host an address of its own"
    return f"set GLOO_SOCKET_IFNAME there to an interface with an address of its own: {', '.join(names)}"


def _reachable(place: Place) -> str:
    if not place.others:
        return "there is no other interface to use: look for a firewall, and for a route to that address"
    names = ", ".join(place.others)
    return f"set GLOO_SOCKET_IFNAME there to an interface that other hosts reach ({names}), or look for a firewall"


def mixed_networks(places: Sequence[Place]) -> list[Finding]:
    """Ranks that reach each other, but by interfaces that do not seem to belong together.

    Networks that differ are normal where routers connect them. They are told where interfaces have different names
    too, or where a rank has another interface in the network that others use.
    """
    nodes = dict.fromkeys(place.node for place in places)
    ways = [{(p.interface, p.network) for p in places if p.node == node and p.network is not None} for node in nodes]
    networks = [{network for _, network in used} for used in ways if used]
    names = [{name for name, _ in used} for used in ways if used]
    if all(used == networks[0] for used in networks):
        return []
    if all(used == names[0] for used in names) and not any(_could_join(place, places) for place in places):
        return []
    placed = [place for place in places if place.network is not None]
    each = dict.fromkeys(f"on {place.network} ({place.interface})" for place in placed)
    told = ", ".join(
        f"{_ranks([p.rank for p in placed if f'on {p.network} ({p.interface})' == where])} {where}" for where in each
    )
    text = (
        f"ranks reach each other, but by different networks: {told}; if that is not meant, set GLOO_SOCKET_IFNAME to "
        "interfaces of one network on all"
    )
    return [Finding("interface", text, tuple(place.rank for place in placed))]


def _could_join(place: Place, places: Sequence[Place]) -> bool:
    """Whether it has another interface in a network that others use."""
    used = {other.network for other in places} - {place.network, None}
    return any(place.network_of(name) in used for name in place.others)


# What is set oddly


def odd_settings(places: Sequence[Place]) -> list[Finding]:
    """Variables that hurt, and more threads than cores."""
    found = []
    for (name, value), why in _HARMFUL.items():
        ranks = tuple(place.rank for place in places if place.settings.get(name, "").upper() == value)
        if ranks:
            found.append(Finding("setting", f"{name}={value} on {_ranks(ranks)}: {why}; unset it", ranks))
    for host in dict.fromkeys(place.host for place in places):
        crowded = [place for place in places if place.host == host and place.threads > cores_for(place, places)]
        if crowded:
            ranks = tuple(place.rank for place in crowded)
            text = _crowded(crowded[0], cores_for(crowded[0], places))
            found.append(Finding("threads", f"{_ranks(ranks)}: {text}", ranks))
    return found


def _crowded(place: Place, cores: float) -> str:
    if place.threads == 1:
        return (
            f"more ranks than cores on {place.host}, {cores:.3g} cores for each: they take turns, and computing takes "
            f"{1 / cores:.3g} times as long or longer; start fewer ranks there"
        )
    fewer = "set OMP_NUM_THREADS=" + (f"{int(cores)} or less" if cores >= 2 else "1")
    still = "" if cores >= 1 else ", and start fewer ranks there"
    return f"{place.threads} threads each, and {cores:.3g} cores; {fewer}{still}"


def slow_threads(places: Sequence[Place], speeds: Sequence[Speeds]) -> list[Finding]:
    """Ranks that would compute faster with one thread: other work has the cores, and threads wait for the last."""
    found = []
    for place, speed in zip(places, speeds, strict=True):
        if place.threads > 1 and speed.compute_s > SLOW_THREADS * speed.single_s > 0:
            text = (
                f"{_there(place)} computes {speed.compute_s / speed.single_s:.1f} times slower with its "
                f"{place.threads} threads than with one, as where other work has its cores; end that, or set "
                "OMP_NUM_THREADS=1 there"
            )
            found.append(Finding("threads", text, (place.rank,)))
    return found


# Who holds the others up


def slow_hosts(places: Sequence[Place], speeds: Sequence[Speeds]) -> list[Finding]:
    """Ranks that compute, or move memory, much slower than most; of two, than the quicker one.

    Those that take turns on a core are slow by that, and told so as `threads`.
    """
    two = len(speeds) == 2
    usual = (min if two else statistics.median)(speed.compute_s for speed in speeds)
    usual_copy = (max if two else statistics.median)(speed.copy_bytes_per_s for speed in speeds)
    found = []
    for place, speed in zip(places, speeds, strict=True):
        ratio = max(speed.compute_s / usual, usual_copy / speed.copy_bytes_per_s)
        if ratio > SLOW_HOST and cores_for(place, places) >= 1:
            text = (
                f"{_there(place)} ({place.address}) is {ratio:.1f} times slower than {'the other' if two else 'most'}, "
                "and all wait for it: look for other work on that host, throttling, or another kind of processor"
            )
            found.append(Finding("slow-host", text, (place.rank,)))
    return found


def slow_links(places: Sequence[Place], wires: Sequence[Wire]) -> list[Finding]:
    """Ranks that send, or receive, much slower than most even where they are quickest."""
    if len({place.node for place in places}) > 1:  # then those within a node say nothing about links
        nodes = {place.rank: place.node for place in places}
        wires = [wire for wire in wires if nodes[wire.sender] != nodes[wire.receiver]]
    if len(places) < 3:  # whose link it is cannot be told
        return []
    found = []
    for does, end in (("sends", "sender"), ("receives", "receiver")):
        best: dict[int, float] = {}  # of the ranks that have such a wire: of many ranks not all pairs are measured
        for wire in wires:
            best[getattr(wire, end)] = max(wire.bytes_per_s, best.get(getattr(wire, end), 0.0))
        usual = statistics.median(best.values())
        found += [
            Finding(
                "slow-link",
                f"{_there(place)} ({_way(place)}) {does} at {in_bits(best[place.rank])}, most at {in_bits(usual)}: "
                "check its cable, port and interface",
                (place.rank,),
            )
            for place in places
            if best.get(place.rank, usual) < SLOW_LINK * usual
        ]
    return found


# Words


def told_ranks(findings: Sequence[Finding]) -> str:
    """Of all of them, each once."""
    return _ranks(sorted({rank for finding in findings for rank in finding.ranks}))


def _fatal(text: str, places: Sequence[Place]) -> Finding:
    return Finding("interface", text, tuple(place.rank for place in places), fatal=True)


def _there(place: Place) -> str:
    return f"rank {place.rank} on {place.host}"


def _way(place: Place) -> str:
    return f"{place.interface} {place.address}".strip()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
