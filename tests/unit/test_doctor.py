"""The doctor's judgement, on clusters that are made up: what is wrong, whose fault it is, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, permutations

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

import terngrad as tg
from terngrad.methods import ParameterInfo
from terngrad.perf import Cluster, Gradient, Line, Link, Profile, doctor
from terngrad.perf.buckets import default_plan
from terngrad.perf.diagnosis import (
    Trial,
    cluster_of,
    codec_rates,
    in_bits,
    in_ddp,
    predict_all,
    step_parts,
    verdict,
)
from terngrad.perf.findings import (
    mixed_networks,
    odd_settings,
    slow_hosts,
    slow_links,
    slow_threads,
    unreachable,
    unreached,
)
from terngrad.perf.places import Place, find_place
from terngrad.perf.probes import Codec, Speeds, is_short, measure_codec, measure_profile, measure_single, sample_of
from terngrad.perf.reach import Miss
from terngrad.perf.wires import Wire, pairs_of

FREE = Codec(Line(), Line(), Line(), 1.0)


def place(rank: int, **changes: object) -> Place:
    address = f"10.0.0.{rank + 1}"
    mine = Place(
        rank, f"node{rank}", "eth0", address, {"lo": "127.0.0.1", "eth0": address}, cores=(0, 1, 2, 3), threads=2
    )
    return replace(mine, **changes)  # type: ignore[arg-type]


def wires(rates: dict[int, float], num_ranks: int = 3, usual: float = 1e8) -> list[Wire]:
    """Between all ranks; what a rank in `rates` sends is that slow."""
    return [Wire(a, b, 1e-4, rates.get(a, usual)) for a, b in permutations(range(num_ranks), 2)]


# What is wrong


def test_a_rank_on_the_loopback_of_another_host_is_named_with_the_interface_to_use() -> None:
    (found,) = unreachable([place(0), place(1, interface="lo", address="127.0.0.1"), place(2)])
    assert (found.ranks, found.fatal) == ((1,), True)
    assert "rank 1 on node1 is reached by lo (127.0.0.1)" in found.text
    assert "GLOO_SOCKET_IFNAME=eth0" in found.text


def test_loopback_is_right_where_all_ranks_are_on_one_host() -> None:
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.1"}
    here = [place(r, host="one", interface="lo", address="127.0.0.1", interfaces=interfaces) for r in range(2)]
    assert unreachable(here) == []
    assert unreachable([place(0), place(1)]) == []


def test_addresses_that_hosts_share_do_not_make_them_one() -> None:
    bridge = {"lo": "127.0.0.1", "docker0": "172.17.0.1"}
    ranks = [place(0, interfaces={**bridge, "eth0": "10.0.0.1"})]
    ranks.append(place(1, interfaces={**bridge, "eth0": "10.0.0.2"}, interface="", address="127.0.1.1"))
    assert [finding.ranks for finding in unreachable(ranks)] == [(1,)]


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    (found,) = unreachable([place(0), place(1, interface="ens3", address="")])
    assert found.fatal
    assert "rank 1 on node1 has no interface ens3, only eth0; set GLOO_SOCKET_IFNAME to one of these" in found.text
    (alone,) = unreachable([place(0, interface="ens3", address="", interfaces={"lo": "127.0.0.1"})])
    assert "no interface ens3, and none but loopback; give it one" in alone.text


def docker(rank: int, **changes: object) -> Place:
    """On the bridge that has the same address on every host."""
    interfaces = {"lo": "127.0.0.1", "eth0": f"10.0.0.{rank + 1}", "docker0": "172.17.0.1"}
    on_bridge = {"interface": "docker0", "address": "172.17.0.1", "interfaces": interfaces}
    masks = {"lo": "255.0.0.0", "eth0": "255.255.255.0", "docker0": "255.255.0.0"}
    return place(rank, **{**on_bridge, "masks": masks, **changes})


def test_one_address_on_several_hosts_is_found_without_connecting() -> None:
    (found,) = unreachable([docker(0), place(1), docker(2)])
    assert (found.what, found.ranks, found.fatal) == ("interface", (0, 2), True)
    assert "ranks 0, 2 on different hosts (node0, node2) have the same address, docker0 172.17.0.1" in found.text
    assert found.text.endswith("an address of its own: eth0")
    same_host = [docker(rank, interfaces=docker(0).interfaces) for rank in range(2)]
    assert unreachable(same_host) == []


def test_a_rank_that_was_not_reached_is_named_with_who_tried_and_what_to_do() -> None:
    misses = [Miss(0, 1, "No route to host"), Miss(2, 1, "Connection refused"), Miss(3, 1, "No route to host")]
    (found,) = unreached([docker(rank) for rank in range(4)], misses)
    assert (found.what, found.ranks, found.fatal) == ("interface", (1,), True)
    assert "rank 1 on node1 cannot be reached by docker0 172.17.0.1 from rank 2 (Connection refused)" in found.text
    assert "from ranks 0, 3 (No route to host)" in found.text
    assert "set GLOO_SOCKET_IFNAME there to an interface that other hosts reach (eth0)" in found.text
    (alone,) = unreached([place(0), place(1)], [Miss(1, 0, "no answer in 5 s")])
    assert "there is no other interface to use: look for a firewall" in alone.text
    assert unreached([place(0), place(1)], []) == []


def test_ranks_on_networks_that_do_not_belong_together_are_told_apart() -> None:
    usual = {"interface": "eth0"}
    (found,) = mixed_networks([docker(0, **usual, address="10.0.0.1"), docker(1), docker(2)])
    assert (found.what, found.ranks, found.fatal) == ("interface", (0, 1, 2), False)
    assert "rank 0 on 10.0.0.0/24 (eth0), ranks 1, 2 on 172.17.0.0/16 (docker0)" in found.text
    assert mixed_networks([docker(rank, **usual, address=f"10.0.0.{rank + 1}") for rank in range(3)]) == []
    assert mixed_networks([place(rank) for rank in range(3)]) == []  # of older files networks are not known


def test_networks_that_routers_connect_are_no_finding_unless_ranks_could_share_one() -> None:
    masks = {"lo": "255.0.0.0", "eth0": "255.255.255.0", "eth1": "255.255.255.0"}
    routed = [
        place(rank, address=f"10.0.{rank}.1", interfaces={"eth0": f"10.0.{rank}.1"}, masks=masks) for rank in range(3)
    ]
    assert mixed_networks(routed) == []
    both = {"eth0": "10.0.7.1", "eth1": "10.0.0.9"}
    assert mixed_networks([*routed[:2], place(2, address="10.0.7.1", interfaces=both, masks=masks)])


def test_ranks_of_a_node_may_have_an_interface_each() -> None:
    masks = {"eth0": "255.255.255.0", "eth1": "255.255.255.0"}
    ranks = []
    for rank in range(4):
        interfaces = {name: f"10.0.{number}.{1 + rank // 2}" for number, name in enumerate(masks)}
        name = f"eth{rank % 2}"
        ranks.append(place(rank, interface=name, address=interfaces[name], interfaces=interfaces, masks=masks))
    assert mixed_networks(ranks) == []


def test_namespaces_that_share_a_name_are_told_apart_by_their_addresses() -> None:
    ranks = [place(0, host="vm", interface="lo", address="127.0.0.1"), place(1, host="vm")]
    assert [finding.ranks for finding in unreachable(ranks)] == [(0,)]
    everyone = [replace(one, interface="lo", address="127.0.0.1") for one in ranks]
    assert [finding.ranks for finding in unreachable(everyone)] == [(0,), (1,)]


def test_settings_that_hurt_are_named_with_their_ranks() -> None:
    odd = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    found = odd_settings([place(0, settings=odd), place(1), place(2, settings=odd, threads=8)])
    assert [(finding.what, finding.ranks) for finding in found] == [("setting", (0, 2)), ("threads", (2,))]
    assert "ranks 0, 2" in found[0].text
    assert "OMP_NUM_THREADS=4" in found[1].text
    assert odd_settings([place(0)]) == []


def test_ranks_of_one_machine_share_its_cores() -> None:
    ranks = [place(rank, host="one", threads=2) for rank in range(4)]
    (found,) = odd_settings(ranks)
    assert (found.what, found.ranks) == ("threads", (0, 1, 2, 3))
    assert "2 threads each, and 1 cores; set OMP_NUM_THREADS=1" in found.text
    pinned = [place(rank, host="one", cores=(rank,), threads=1) for rank in range(4)]
    assert odd_settings(pinned) == []
    elsewhere = [*ranks, place(4, host="two", threads=9)]
    assert [finding.ranks for finding in odd_settings(elsewhere)] == [(0, 1, 2, 3), (4,)]


def test_more_ranks_than_cores_is_not_blamed_on_threads() -> None:
    ranks = [place(rank, host="one", cores=(0, 1), threads=1) for rank in range(3)]
    (found,) = odd_settings(ranks)
    assert (found.what, found.ranks) == ("threads", (0, 1, 2))
    assert "more ranks than cores on one, 0.667 cores for each" in found.text
    assert "computing takes 1.5 times as long or longer; start fewer ranks there" in found.text
    assert "OMP_NUM_THREADS" not in found.text
    (found,) = odd_settings([replace(one, threads=2) for one in ranks])
    assert found.text.endswith("set OMP_NUM_THREADS=1, and start fewer ranks there")


def test_threads_that_make_a_rank_slower_are_named() -> None:
    speeds = [Speeds(1e10, 0.34, single_s=0.004), Speeds(1e10, 0.004, single_s=0.007), Speeds(1e10, 0.004)]
    (found,) = slow_threads([place(rank) for rank in range(3)], speeds)
    assert (found.what, found.ranks) == ("threads", (0,))
    assert "computes 85.0 times slower with its 2 threads than with one" in found.text
    assert slow_threads([place(0, threads=1)], speeds[:1]) == []


@pytest.mark.parametrize("slow", [Speeds(1e10, 0.02), Speeds(5e9, 0.01)])
def test_a_slow_host_is_named(slow: Speeds) -> None:
    usual = Speeds(1e10, 0.01)
    (found,) = slow_hosts([place(rank) for rank in range(3)], [usual, slow, usual])
    assert found.ranks == (1,)
    assert "rank 1 on node1 (10.0.0.2) is 2.0 times slower" in found.text
    assert slow_hosts([place(0), place(1)], [usual, Speeds(0.9e10, 0.0101)]) == []


def test_of_two_ranks_the_slower_one_is_compared_with_the_quicker() -> None:
    (found,) = slow_hosts([place(0), place(1)], [Speeds(1e10, 0.01), Speeds(1e10, 0.014)])
    assert found.ranks == (1,)
    assert "1.4 times slower than the other" in found.text


def test_ranks_that_take_turns_on_a_core_are_not_called_slow_hosts() -> None:
    sharing = [place(rank, host="one", cores=(0, 1), threads=1) for rank in range(3)]
    speeds = [Speeds(1e10, 0.01), Speeds(1e10, 0.03), Speeds(1e10, 0.01)]
    assert slow_hosts(sharing, speeds) == []
    alone = [replace(one, cores=(rank,)) for rank, one in enumerate(sharing)]
    assert [finding.ranks for finding in slow_hosts(alone, speeds)] == [(1,)]


def looks_at(monkeypatch: pytest.MonkeyPatch, looks: list[list[Speeds]]) -> tuple[list[Speeds], int]:
    """What comes of such looks at three ranks' speeds, and how many there were."""
    told = iter(looks)
    monkeypatch.setattr(doctor, "measure_speeds", lambda: Speeds(1.0, 1.0))
    monkeypatch.setattr(doctor, "PAUSE_S", 0.0)
    found = doctor.look_at_speeds([place(rank) for rank in range(3)], lambda mine: next(told))
    return found, len(looks) - len(list(told))


def test_a_rank_is_called_slow_only_if_no_look_finds_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, slow, copies = Speeds(1e10, 0.01), Speeds(1e10, 0.03), Speeds(2e9, 0.008)
    assert looks_at(monkeypatch, [[usual] * 3]) == ([usual] * 3, 1)
    found, count = looks_at(monkeypatch, [[usual, slow, usual], [usual, copies, usual], [slow] * 3])
    assert (found[1], count) == (Speeds(1e10, 0.008), 2)
    lucky = [Speeds(3e10, 0.01), usual, Speeds(3e10, 0.01)]  # by their bests the second would seem slow
    assert looks_at(monkeypatch, [lucky, [usual] * 3, [slow] * 3]) == ([usual] * 3, 2)
    found, count = looks_at(monkeypatch, [[usual, slow, usual]] * doctor.MOST_LOOKS)
    assert (found, count) == ([usual, slow, usual], doctor.MOST_LOOKS)


def test_a_group_that_cannot_be_made_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("connectFullMesh failed")

    monkeypatch.setattr(doctor, "_meet", HashStore)
    monkeypatch.setattr(doctor, "tell_all", lambda *_: [place(0), place(1)])
    monkeypatch.setattr(doctor, "find_misses", lambda *_: [])
    monkeypatch.setattr("torch.distributed.init_process_group", refuse)
    with pytest.raises(tg.ExchangeError, match=r"rank 1 could not connect to all of 2 ranks.*connectFullMesh failed"):
        doctor.examine(1, 2, {}, lambda _: pytest.fail("there is no one to look with"), tg.attach)


def test_a_slow_link_is_named_by_the_rank_that_has_it_and_not_by_those_it_slows_down() -> None:
    places = [place(rank) for rank in range(3)]
    (found,) = slow_links(places, wires({2: 1e7}))
    assert found.ranks == (2,)
    assert "sends at 80 Mb/s, most at 800 Mb/s" in found.text
    received = [replace(wire, sender=wire.receiver, receiver=wire.sender) for wire in wires({2: 1e7})]
    assert "receives at 80 Mb/s" in slow_links(places, received)[0].text
    assert slow_links(places, wires({})) == []


def test_wires_within_a_node_do_not_hide_its_slow_link_nor_accuse_others() -> None:
    near = [{"eth0": "10.0.0.1"}, {"eth0": "10.0.0.1"}, {"eth0": "10.0.0.3"}, {"eth0": "10.0.0.4"}]
    places = [place(rank, interfaces=one) for rank, one in enumerate(near)]
    quick = {(0, 1): 1e10, (1, 0): 1e10}
    found = [Wire(a, b, 1e-5, quick.get((a, b), 1e6 if 3 in (a, b) else 1e8)) for a, b in permutations(range(4), 2)]
    assert {finding.ranks for finding in slow_links(places, found)} == {(3,)}


def test_a_rank_of_which_no_wire_to_another_node_was_measured_is_not_accused() -> None:
    addresses = [f"10.0.0.{1 + rank // 4}" for rank in range(12)]
    places = [place(rank, interfaces={"eth0": address}) for rank, address in enumerate(addresses)]
    measured = [Wire(*way, 1e-5, 1e8) for pair in pairs_of(12) for way in (pair, pair[::-1])]
    assert slow_links(places, measured) == []


def test_of_two_ranks_it_cannot_be_told_whose_link_is_slow() -> None:
    assert slow_links([place(0), place(1)], wires({0: 1e6}, num_ranks=2)) == []


# What methods would take


def profile_of(numel: int, seconds: float) -> Profile:
    return Profile(0.0, (Gradient(ParameterInfo("weight", numel, False), seconds),), 0.0)


def test_ranks_with_the_same_addresses_are_one_node() -> None:
    here, there = {"eth0": "10.0.0.1"}, {"eth0": "10.0.0.3"}
    places = [place(rank, interfaces=here if rank < 2 else there) for rank in range(4)]
    measured = [Wire(0, 1, 1e-6, 1e9), Wire(0, 2, 1e-4, 1e7), Wire(1, 2, 1e-4, 1e7)]
    found = cluster_of(places, measured, None)
    assert (found.num_nodes, found.devices) == (2, 2)
    assert found.between == Link(1e-4, 1e7)
    assert found.within == Link(1e-6, 1e9)
    uneven = cluster_of(places[:3], measured, None)
    assert (uneven.num_workers, uneven.between) == (3, Link(1e-4, 1e7))


def test_buckets_are_those_of_ddp() -> None:
    gradients = tuple(Gradient(ParameterInfo(str(i), 1 << 20, False), 1.0 + i) for i in range(9))
    assert default_plan(Profile(0.0, gradients, 0.0)) == (1, 7, 1)  # of 4 MB each: 1 MB, then 25 MB


def test_on_a_slow_link_it_says_what_to_use_and_what_that_gains() -> None:
    slow = Cluster(2, Link.of(1e8))
    text = verdict(predict_all(profile_of(1 << 20, 0.01), slow, {"terngrad": (tg.TernGrad(), FREE)}, 1.0))
    assert "communication is 97 %" in text
    assert "Use terngrad: " in text
    assert "times as fast" in text


def test_on_a_fast_link_it_says_not_to_compress() -> None:
    fast = Cluster(2, Link.of(1e11, 1e-6))
    text = verdict(predict_all(profile_of(1 << 20, 1.0), fast, {"terngrad": (tg.TernGrad(), FREE)}, 1.0))
    assert "Do not compress" in text


SLOW = Cluster(2, Link.of(1e8))
SPARSE, TERNARY = {"sdagc": (tg.from_spec("sdagc"), FREE)}, {"terngrad": (tg.TernGrad(), FREE)}


def test_sparse_methods_are_named_beside_what_loses_less() -> None:
    found = predict_all(profile_of(1 << 20, 0.01), SLOW, {**TERNARY, **SPARSE}, 1.0)
    quicker = min(found["sdagc"].step_s, found["terngrad"].step_s) == found["sdagc"].step_s
    assert quicker  # else there is nothing to say of it
    text = verdict(found)
    assert "Use terngrad: " in text
    assert "; with sparse gradients, which need SGD, sdagc: " in text
    assert text.count("times as fast") == 2


def test_where_only_sparse_methods_pay_that_is_said() -> None:
    found = predict_all(profile_of(1 << 20, 0.01), SLOW, SPARSE, 1.0)
    text = verdict({name: one for name, one in found.items() if name != "ddp-fp16"})
    assert "Only sparse methods would make it much shorter: with sparse gradients, which need SGD, sdagc: " in text


def test_of_a_step_it_tells_when_gradients_are_ready() -> None:
    numels = {0.001: 10, 0.002: 50, 0.004: 60}
    gradients = tuple(Gradient(ParameterInfo(str(n), n, False), moment) for moment, n in numels.items())
    parts = step_parts(Profile(0.003, gradients, 0.0005))
    assert (parts["gradients"], parts["numel"]) == (3, 120)
    assert (parts["first_ready_s"], parts["half_ready_s"], parts["backward_s"]) == (0.001, 0.002, 0.004)
    assert (parts["forward_s"], parts["update_s"]) == (0.003, 0.0005)


def test_rates_of_codecs_are_of_the_fp32_gradient() -> None:
    codecs = {"fp16": Codec(Line(0.0, 1e-9), Line(0.0, 5e-10), Line()), "terngrad": replace(FREE, size_ratio=0.5)}
    half, ternary = codec_rates(codecs, profile_of(1 << 20, 0.01))
    assert (half["method"], half["encode_bytes_per_s"]) == ("fp16", pytest.approx(4e9))
    assert half["decode_bytes_per_s"] == pytest.approx(8e9)
    assert half["ratio"] == pytest.approx(2, rel=1e-3)
    assert ternary["encode_bytes_per_s"] is None  # too quick to be measured
    assert ternary["ratio"] == pytest.approx(2 * 32 * 5 / 8, rel=1e-2)  # five trits a byte, and half of that


def test_codes_without_a_shared_scaler_go_by_all_gather_alone() -> None:
    method = tg.TernGrad(shared=False)
    found = predict_all(profile_of(1 << 20, 0.1), Cluster(16, Link.of(1e8)), {"own": (method, FREE)}, 1.0)
    assert getattr(found["own"].sending, "exchange", "") == "all-gather"


def test_what_is_measured_of_the_size_of_messages_counts() -> None:
    half = replace(FREE, size_ratio=0.5)
    codecs = {"plain": (tg.TernGrad(), FREE), "half": (tg.TernGrad(codec="entropy"), half)}
    found = predict_all(profile_of(1 << 20, 0.1), Cluster(2, Link.of(1e8)), codecs, 1.0)
    assert found["half"].bytes_sent == pytest.approx(found["plain"].bytes_sent / 2, rel=0.01)


def test_what_a_trial_took_beyond_its_prediction_is_what_buckets_cost() -> None:
    layers = [Gradient(ParameterInfo(f"{i}.weight", 1 << 18, False), 1e-3 * (i + 1)) for i in range(2)]
    speeds, cluster = [Speeds(1e10, 1e-3, 1e-9)] * 2, Cluster(2, Link(1e-4, 1e9))
    methods = {"terngrad": tg.from_spec("terngrad")}
    known = {"terngrad": (methods["terngrad"], FREE)}
    profile = Profile(0.001, tuple(layers), 0.0)
    plain = predict_all(in_ddp(profile, speeds), cluster, known, 2.0, 1e-9)
    late = {"ddp": 0.004, "terngrad": 0.006, "ddp-fp16": -0.001}
    trial = Trial(profile, {"terngrad": FREE}, {name: plain[name].step_s + more for name, more in late.items()})
    overheads = trial.overheads(speeds, cluster, methods, 2.0)
    assert 0.002 <= overheads["ddp"] <= 0.004  # there are two, and the wire may hide one of them
    assert overheads["terngrad"] == pytest.approx(0.003, rel=0.1)
    assert overheads["ddp-fp16"] == 0.0
    again = predict_all(in_ddp(profile, speeds), cluster, known, 2.0, 1e-9, overheads)
    assert again["terngrad"].step_s == pytest.approx(trial.steps["terngrad"], rel=1e-5)
    assert again["ddp"].step_s == pytest.approx(trial.steps["ddp"], rel=1e-5)
    assert again["terngrad"].bound == again["ddp"].bound == "latency"
    assert Trial.read(trial.describe()) == trial


@pytest.mark.parametrize(
    ("rate", "text"), [(1.25e9, "10 Gb/s"), (1.19e7, "95.2 Mb/s"), (1e3, "8 kb/s"), (1.0, "8 b/s")]
)
def test_rates_are_told_in_bits(rate: float, text: str) -> None:
    assert in_bits(rate) == text


# Probes


def test_few_ranks_are_all_paired_and_many_by_a_ring_and_the_first() -> None:
    assert pairs_of(3) == [(0, 1), (0, 2), (1, 2)]
    many = pairs_of(20)
    assert len(many) == 20 - 2 + 19
    assert {rank for pair in many for rank in pair} == set(range(20))
    assert all(a < b for a, b in many)


def ticks() -> Iterator[float]:
    yield from map(float, count())


def test_a_profile_has_gradients_in_the_order_of_backward() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    unused = nn.Parameter(torch.zeros(3))
    net.register_parameter("unused", unused)
    clock = ticks()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    found = measure_profile(net, lambda: net(torch.ones(3, 4)).sum(), optimizer, clock=lambda: next(clock))
    names = [gradient.parameter.name for gradient in found.gradients]
    assert {*names[:2]} == {"1.weight", "1.bias"}
    assert {*names[2:]} == {"0.weight", "0.bias"}
    assert [gradient.ready_s for gradient in found.gradients] == [1.0, 2.0, 3.0, 4.0]  # a tick each
    assert (found.forward_s, found.update_s) == (1.0, 1.0)
    assert sample_of(net).numel() == 20
    assert unused.grad is None


def test_a_step_is_as_long_as_the_slowest_ranks() -> None:
    net = nn.Linear(4, 5)
    clock = ticks()
    told: list[float] = []

    def slowest(seconds: float) -> float:
        told.append(seconds)
        return 2.5 * seconds

    found = measure_profile(net, lambda: net(torch.ones(3, 4)).sum(), clock=lambda: next(clock), slowest=slowest)
    assert told == [0.0, *[5.0] * 6]  # they meet before the first
    assert (found.forward_s, found.backward_s, found.update_s) == (2.5, 5.0, 2.5)


def test_measuring_with_one_thread_leaves_as_many_as_there_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert measure_single(repeats=1) > 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_short_steps_are_repeated_more_often() -> None:
    assert is_short([9.0] * 5, repeats=5)
    assert not is_short([9.0] * 6, repeats=5)  # the first does not count
    assert is_short([9.0, *[0.01] * 20], repeats=5)
    assert not is_short([9.0, *[0.01] * 30], repeats=5)
    assert not is_short([9.0, *[0.1] * 6], repeats=5)


@pytest.mark.parametrize("spec", ["bf16", "terngrad", "terngrad:codec=entropy", "sdagc:values=sign", "dgc"])
def test_codecs_are_measured_on_real_gradients(spec: str) -> None:
    method = tg.from_spec(spec)
    sample = torch.randn(1000, generator=torch.Generator().manual_seed(3)) ** 5  # heavy tails: few codes are not zero
    found = measure_codec(method, sample, largest=1 << 14, repeats=1)
    assert all(line.fixed_s >= 0 and line.element_s >= 0 for line in (found.encode, found.decode, found.add))
    assert found.encode(1e6) > 0
    if spec.endswith("entropy"):
        assert 0.1 < found.size_ratio < 0.6
    elif spec in ("bf16", "terngrad"):
        assert found.size_ratio == 1


def test_codecs_are_measured_as_they_are_after_a_warm_up() -> None:
    sample = torch.randn(1 << 14, generator=torch.Generator().manual_seed(3))
    usual, warming = (
        measure_codec(tg.from_spec(spec), sample, largest=1 << 16, repeats=1)
        for spec in ("dgc", "dgc:warmup_steps=1000")
    )
    assert warming.size_ratio == pytest.approx(usual.size_ratio)


def test_ranks_on_nodes_of_their_own_have_the_link_of_all_at_once() -> None:
    together = Link(2e-4, 5e7, cpu_s=1e-9)
    places = [place(rank) for rank in range(3)]
    assert cluster_of(places, wires({}), together) == Cluster(3, together)
    shared = [place(rank, interfaces={"eth0": f"10.0.0.{rank // 2}"}) for rank in range(4)]
    found = cluster_of(shared, wires({}, num_ranks=4), together)
    assert (found.num_nodes, found.devices) == (2, 2)
    assert found.between == Link(1e-4, 1e8, cpu_s=1e-9)


def test_a_place_says_where_this_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = find_place(3)
    assert (found.rank, found.interface, found.address, found.is_loopback) == (3, "lo", "127.0.0.1", True)
    assert found.settings["OMP_NUM_THREADS"] == "1"
    assert len(found.cores) >= 1
    assert found.network == "127.0.0.0/8"
    assert Place.read(json.loads(json.dumps(found.describe()))) == found
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    assert (find_place(0).interface, find_place(0).address) == ("nothing0", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr("socket.gethostname", lambda: "no-such-host.invalid")
    assert find_place(0).address == "127.0.0.1"
