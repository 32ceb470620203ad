"""The performance model, against times that were worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

from terngrad import ConfigurationError, from_spec
from terngrad.cli.model import parameters_of
from terngrad.codecs import Segment
from terngrad.exchange import EXCHANGES, LENGTH_BYTES
from terngrad.methods import Coder, ParameterInfo
from terngrad.methods.base import PART_ELEMENTS
from terngrad.perf import (
    AllReduce,
    Cluster,
    Coded,
    Gradient,
    Line,
    Link,
    Prediction,
    Profile,
    Served,
    Timeline,
    Work,
    break_even,
    paper,
    simulate,
)

FAST = Link(latency_s=0.0, bytes_per_s=1000.0)


def close(found: Timeline, **wanted: float) -> None:
    assert {name: getattr(found, name) for name in wanted} == pytest.approx(wanted)


# Backward and the lane


def test_what_is_ready_last_is_exposed() -> None:
    found = simulate([1.0], [Work(encode_s=0.1, send_s=0.5, decode_s=0.2)])
    close(found, backward_s=1.0, end_s=1.8, exposed_s=0.8, encode_s=0.1, exchange_s=0.5, decode_s=0.2)


def test_a_bucket_that_is_alone_is_finished_while_backward_runs_on() -> None:
    work = Work(encode_s=0.1, send_s=0.5, decode_s=0.1)
    # The first is over at 1.7; the second begins at 2.
    close(simulate([1.0, 2.0], [work, work]), backward_s=2.0, end_s=2.7, exchange_s=1.0)


def test_a_bucket_is_decoded_while_the_next_is_on_the_wire() -> None:
    work = Work(encode_s=0.1, send_s=0.5, decode_s=0.3)
    # Sent at 1.1 and 1.2, arrived at 1.6 and 2.1; decoded from 1.6 to 1.9 and from 2.1 to 2.4.
    close(simulate([1.0, 1.0], [work, work]), end_s=2.4, exchange_s=0.4 + 0.2)


def test_one_core_for_both_slows_both_down_while_both_compute() -> None:
    work = Work(encode_s=0.5, send_s=0.0, decode_s=0.0)
    # From 1 to 2 each gets half of the core; the rest of backward, 0.5, ends at 2.5; then the second is encoded.
    close(simulate([1.0, 2.0], [work, work], contention=2.0), backward_s=2.5, end_s=3.0, encode_s=1.5)


def test_the_round_of_scalers_waits_behind_the_codes_of_the_bucket_before() -> None:
    works = [Work(encode_s=0.0, send_s=1.0, decode_s=0.0), Work(encode_s=0.0, round_s=0.1, send_s=1.0, decode_s=0.0)]
    close(simulate([1.0, 1.0], works), end_s=1.0 + 1.0 + 0.1 + 1.0)


def test_lengths_are_a_round_before_each_transfer() -> None:
    two = Work(0.1, 0.2, 0.5, lengths_s=0.05, in_two=True, add_s=0.3, sum_lengths_s=0.07, sums_s=0.4)
    close(simulate([1.0], [two]), end_s=2.62, exchange_s=0.72)


def test_nothing_waits_for_a_rest_that_is_not_there() -> None:
    short = Work(0.0, 0.0, 0.0, lengths_s=0.1, in_two=True, add_s=0.3, sum_lengths_s=0.1, delay_s=0.2)
    close(simulate([1.0], [short]), end_s=1.0 + 0.1 + 0.3 + 0.1)
    close(simulate([1.0, 3.0], [short, Work(0.0, 0.0, 0.0)]), exchange_s=0.1 + 0.2 + 0.1 + 0.2, decode_s=0.3)


def test_sums_are_a_second_transfer() -> None:
    work = Work(encode_s=0.1, send_s=0.2, in_two=True, add_s=0.3, sums_s=0.4, decode_s=0.5)
    close(simulate([1.0], [work]), end_s=2.5, decode_s=0.8, exchange_s=0.6)


def test_handing_bytes_to_the_network_takes_the_processor_while_they_are_on_the_wire() -> None:
    alone = simulate([1.0], [Work(0.0, 2.0, 0.0, handling_s=0.5)], contention=2.0)
    close(alone, backward_s=1.0, end_s=3.0, exchange_s=2.0)
    beside = simulate([1.0, 3.0], [Work(0.0, 0.5, 0.0, handling_s=0.5), Work(0.0, 0.1, 0.0)], contention=2.0)
    close(beside, backward_s=3.5, end_s=3.6)


def test_what_is_posted_while_backward_runs_is_delayed_but_not_beyond_its_end() -> None:
    work = Work(encode_s=0.0, send_s=0.1, decode_s=0.0, delay_s=0.5)
    close(simulate([1.0], [work]), end_s=1.1)
    close(simulate([1.0, 3.0], [work, work]), end_s=3.1, exchange_s=0.1 + 0.5 + 0.1)
    late = Work(encode_s=0.0, send_s=0.1, decode_s=0.0, round_s=0.1, delay_s=5.0)
    close(simulate([1.0, 3.0], [late, work]), end_s=3.0 + 0.1 + 0.1)  # the first round holds all others up
    long = Work(encode_s=0.0, send_s=5.0, decode_s=0.0, delay_s=0.5)
    close(simulate([1.0, 3.0], [long, long]), end_s=11.0)


def test_without_a_lane_buckets_are_posted_when_they_are_ready() -> None:
    lane = Work(encode_s=0.0, send_s=0.3, decode_s=0.1, delay_s=1.0)
    ddp = replace(lane, at_once=True)
    # The lane has two under way and no more: the third one waits for the first, the last one for the third.
    close(simulate([1.0, 1.1, 1.2, 3.0], [lane] * 4), end_s=3.0 + 0.3 + 0.1 + 0.1, exchange_s=1.2 + 0.2 + 0.4 + 0.2)
    close(simulate([1.0, 1.1, 1.2, 3.0], [ddp] * 4), end_s=3.0 + 0.3 + 0.1)


def test_a_bucket_is_sent_while_the_one_before_is_on_the_wire() -> None:
    work = Work(encode_s=0.1, send_s=1.0, decode_s=0.2)
    close(simulate([1.0, 1.5], [work, work]), backward_s=1.5, end_s=3.1 + 0.2)
    close(simulate([1.0, 2.2], [work, work]), backward_s=2.2, end_s=2.3 + 0.1 + 1.0 + 0.2)  # the first is decoded


def test_nothing_to_send_takes_no_time() -> None:
    close(simulate([], []), backward_s=0.0, end_s=0.0)


# Messages on a cluster


def test_a_round_on_equal_links_takes_what_one_rank_sends() -> None:
    assert Cluster(4, FAST).to_all(100) == pytest.approx(0.3)


def test_devices_of_a_node_share_its_link() -> None:
    cluster = Cluster(2, FAST, devices=4, within=Link(0.0, 1e9))
    assert cluster.num_workers == 8
    assert cluster.to_all(100) == pytest.approx(4 * 4 * 100 / 1000)  # each of four sends to four others
    assert cluster.all_reduce(800) == pytest.approx(2 * 7 * 100 / 1000)  # the ring leaves a node once
    assert cluster.all_reduce_by_nodes(800) == pytest.approx(800 / 1000, rel=1e-4)


@pytest.mark.parametrize(("nodes", "crossings"), [(1, 0), (2, 1), (3, 2), (100, 2)])
def test_a_tree_sends_everything_there_and_back(nodes: int, crossings: int) -> None:
    assert Cluster(nodes, FAST).all_reduce_by_nodes(500, tree=True) == pytest.approx(crossings * 0.5)


def test_latency_counts_once_for_a_round_and_often_for_a_ring() -> None:
    cluster = Cluster(4, Link(0.01, 1e12))
    assert cluster.to_all(1) == pytest.approx(0.01)
    assert cluster.all_reduce(4) == pytest.approx(6 * 0.01)
    other = Cluster(4, Link(0.01, 1e12, ring=Link(0.002, 1e12)))
    assert other.to_all(1) == pytest.approx(0.01)
    assert other.all_reduce(4) == pytest.approx(6 * 0.002)
    assert other.around(1) == pytest.approx(3 * 0.002)


def test_a_link_can_be_kept_and_changed_with_its_ring() -> None:
    link = Link(0.01, 1e6, 1e-9, 0.1, Link(0.002, 1e9, busy_s=0.2), Link(0.004, 1e8))
    assert Link.read(asdict(link)) == link
    assert Link.read(asdict(FAST)) == FAST
    assert link.changed(latency_s=0.0, busy_s=0.0) == Link(0.0, 1e6, 1e-9, 0.0, Link(0.0, 1e9), Link(0.0, 1e8))
    assert Cluster(2, link).all_reduce(2e6) == pytest.approx(2 * (0.002 + 1e-3))
    assert Cluster(2, link).all_reduce(2e6, halves=True) == pytest.approx(2 * (0.004 + 1e-2))
    assert FAST.changed(bytes_per_s=1.0) == Link(0.0, 1.0)


def test_busy_processors_delay_every_round_and_an_all_reduce_twice() -> None:
    parameters = [gradient.parameter for gradient in profile_of(1.0).gradients]
    cluster = Cluster(2, Link(0.0, 1e9, busy_s=0.5))
    assert AllReduce().work(parameters, cluster).delay_s == 1.0
    assert AllReduce().work(parameters, Cluster(1, cluster.between)).delay_s == 0.0
    assert Coded(from_spec("terngrad")).work(parameters, cluster).delay_s == 0.5


def test_one_worker_sends_nothing() -> None:
    alone = Cluster(1, FAST)
    assert alone.to_all(100) == alone.all_reduce(100) == alone.all_reduce_by_nodes(100) == 0
    step = Prediction(profile_of(1.0), (1,), AllReduce(overhead_s=0.5), alone)
    assert (step.step_s, step.bound) == (step.profile.compute_s, "compute")


def test_servers_are_bound_by_their_own_links() -> None:
    cluster = Cluster(4, FAST)
    assert cluster.through_servers(100, 50, num_servers=1) == pytest.approx(0.4 + 0.2)
    assert cluster.through_servers(100, 50, num_servers=8) == pytest.approx(0.1 + 0.05)


@pytest.mark.parametrize(("latency", "rate"), [(-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)])
def test_a_link_that_cannot_be_is_refused(latency: float, rate: float) -> None:
    with pytest.raises(ConfigurationError, match="must be >= 0, its rate above 0"):
        Link(latency, rate)


@pytest.mark.parametrize(("nodes", "devices"), [(0, 1), (1, 0)])
def test_a_cluster_of_nothing_is_refused(nodes: int, devices: int) -> None:
    with pytest.raises(ConfigurationError, match="at least one of each"):
        Cluster(nodes, FAST, devices)


# A step


def test_ddp_copies_gradients_to_its_buckets_and_back() -> None:
    bare = profile_of(1.0, 2.0, numel=1000)
    found = bare.with_copies(4000.0)
    assert [gradient.ready_s for gradient in found.gradients] == [2.0, 4.0]
    assert found.update_s == bare.update_s + 2.0


def profile_of(*ready: float, numel: int = 1000) -> Profile:
    return Profile(
        0.5, tuple(Gradient(ParameterInfo(f"{i}.weight", numel, False), moment) for i, moment in enumerate(ready)), 0.25
    )


def test_a_profile_comes_back_from_its_description() -> None:
    profile = profile_of(1.0, 2.0)
    assert Profile.read(json.loads(json.dumps(profile.describe()))) == profile
    assert (profile.compute_s, profile.numel) == (2.75, 2000)


@pytest.mark.parametrize("ready", [(), (2.0, 1.0), (-1.0,)])
def test_a_profile_that_cannot_be_is_refused(ready: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError, match="one or more, in the order"):
        profile_of(*ready)


def test_a_step_is_forward_and_backward_with_the_lane_and_the_update() -> None:
    found = Prediction(profile_of(1.0, 2.0), (2,), AllReduce(), Cluster(2, FAST))
    assert found.step_s == pytest.approx(0.5 + 2.0 + 8.0 + 0.25)  # 8,000 bytes, of which each of two sends as many
    assert found.bytes_sent == pytest.approx(8000)
    assert found.bound == "bandwidth"


def test_a_plan_of_other_gradients_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"plan \(1,\) for 2 gradients"):
        Prediction(profile_of(1.0, 2.0), (1,), AllReduce(), Cluster(2, FAST))


def test_what_bounds_a_step_is_what_it_would_gain_most_without() -> None:
    profile = profile_of(1.0)
    slow_codec = AllReduce("fp16", 2, cast=Line(element_s=1e-3))
    assert Prediction(profile, (1,), slow_codec, Cluster(2, Link(0.0, 1e6))).bound == "codec"
    assert Prediction(profile, (1,), AllReduce(), Cluster(2, Link(0.5, 1e9))).bound == "latency"
    assert Prediction(profile, (1,), AllReduce(), Cluster(2, Link(0.0, 1e9))).bound == "compute"


@pytest.mark.parametrize("spec", ["terngrad", "terngrad:codec=two-bit", "fp16", "sdagc", "terngrad:codec=entropy"])
@pytest.mark.parametrize("exchange", ["all-gather", "two-shot"])
@pytest.mark.parametrize("count", [2, 5])
def test_bytes_are_those_of_the_messages(spec: str, exchange: str, count: int) -> None:
    profile = profile_of(1.0, 2.0, numel=5000)
    found = Prediction(profile, (2,), Coded(from_spec(spec), exchange), Cluster(count, FAST))
    infos = [gradient.parameter for gradient in profile.gradients]
    way = EXCHANGES[exchange]
    segments = (Segment(0, 0, 5000), Segment(1, 5000, 5000))
    frame = Coder(from_spec(spec), infos, 0, count, 0).frame(segments, torch.float32, False, way.num_shards(count, 1))
    rounds = way.num_rounds * LENGTH_BYTES if spec in ("sdagc", "terngrad:codec=entropy") else 0
    assert found.bytes_sent == way.bytes_sent(frame.expected, count) + (count - 1) * (frame.scalers_nbytes + rounds)


@pytest.mark.parametrize("spec", ["terngrad", "terngrad:codec=entropy", "fp32"])
def test_large_buckets_are_sent_in_parts_by_all_gather(spec: str) -> None:
    parameters = [ParameterInfo("a", 3 * PART_ELEMENTS + 7, False)]
    profile = Profile(0.0, (Gradient(parameters[0], 1.0),), 0.0)
    cluster = Cluster(2, FAST)
    times = {"encode": Line(element_s=1e-7), "decode": Line(element_s=1e-7)}
    gathered, summed = (Coded(from_spec(spec), name, **times) for name in ("all-gather", "two-shot"))
    assert [way.num_parts(parameters, cluster) for way in (gathered, summed)] == [3, 1]
    assert gathered.num_parts(parameters, Cluster(1, FAST)) == 1
    frame = Coder(from_spec(spec), parameters, 0, 2, 0).frame(
        (Segment(0, 0, parameters[0].numel),), torch.float32, False, 3
    )
    lengths = 3 * LENGTH_BYTES if "entropy" in spec else 0
    wanted = 3 * frame.expected.nbytes + frame.scalers_nbytes + lengths
    found = Prediction(profile, (1,), gathered, cluster)
    assert found.bytes_sent == wanted
    work = gathered.work(parameters, cluster)
    whole = simulate([1.0], [work])
    assert found.timeline.end_s < whole.end_s + 2 * work.lengths_s  # parts have a length each


def test_a_bucket_in_parts_is_encoded_and_decoded_while_it_is_on_the_wire() -> None:
    work = Work(encode_s=0.3, send_s=3.0, decode_s=0.6, round_s=0.1, handling_s=0.3)
    parts = work.cut(3)
    assert [part.round_s for part in parts] == [0.1, 0.0, 0.0]
    found = simulate([1.0] * 3, parts)
    close(found, end_s=1.0 + 0.1 + 0.1 + 3.0 + 0.2, encode_s=0.3, decode_s=0.6)
    assert work.cut(1) == [work]


def test_sums_of_a_few_bytes_are_a_second_round_too() -> None:
    method, cluster = from_spec("sdagc:threshold=3"), Cluster(4, Link(1e-4, 1e6))
    infos = [ParameterInfo("weight", 100_000, False)]
    work = Coded(method, "two-shot", add=Line(element_s=1e-6)).work(infos, cluster)
    assert work.in_two
    assert work.add_s > 0
    assert (work.send_s, work.sums_s) == (0, 0)
    assert work.sum_lengths_s > work.lengths_s > 1e-4  # the sum of four is the larger message


def test_all_payloads_are_decoded_in_all_gather_and_one_sum_in_two_shot() -> None:
    method = from_spec("fp16")
    times = {"encode": Line(element_s=1e-3), "decode": Line(element_s=2e-3), "add": Line(element_s=4e-3)}
    infos = [ParameterInfo("weight", 1000, False)]
    gathered = Coded(method, "all-gather", **times).work(infos, Cluster(4, FAST))
    summed = Coded(method, "two-shot", **times).work(infos, Cluster(4, FAST))
    assert (gathered.encode_s, gathered.decode_s, gathered.add_s) == pytest.approx((1.0, 8.0, 0.0))
    assert (summed.encode_s, summed.decode_s, summed.add_s) == pytest.approx((1.0, 2.0, 4.0))
    assert Coded(method, "two-shot", **times).work(infos, Cluster(1, FAST)) == Work(0.0, 0.0, 0.0)


@pytest.mark.parametrize("spec", ["fp32", "terngrad", "terngrad:codec=entropy"])
def test_workers_send_servers_their_codes_once_however_many_there_are(spec: str) -> None:
    parameters = [ParameterInfo("a", 100_000, False)]
    sent = {
        (servers, count): Served(from_spec(spec), num_servers=servers).bytes_sent(parameters, Cluster(count, FAST))
        for servers in (1, 4)
        for count in (2, 8)
    }
    small = 0.05 * sent[1, 2]  # scalers, headers, lengths
    assert max(sent.values()) - min(sent.values()) < small
    gathered = Coded(from_spec(spec)).bytes_sent(parameters, Cluster(2, FAST))  # to the one other worker
    assert sent[1, 2] == pytest.approx(gathered, abs=small)


def test_one_server_for_many_workers_is_what_a_step_waits_for() -> None:
    profile = profile_of(0.001, numel=100_000)

    def exposed(count: int, servers: int) -> float:
        way = Served(from_spec("terngrad"), num_servers=servers)
        return Prediction(profile, (1,), way, Cluster(count, Link(0.0, 1e6))).timeline.exposed_s

    assert exposed(16, 1) == pytest.approx(4 * exposed(16, 4), rel=0.1)
    assert exposed(16, 16) < exposed(16, 4)


def test_half_the_bytes_pay_below_the_rate_at_which_casting_takes_as_long() -> None:
    profile = profile_of(1.0)
    half = AllReduce("fp16", 2, cast=Line(fixed_s=0.5))  # twice, for 2,000 bytes less: 2,000 bytes a second
    found = break_even(profile, (1,), half, AllReduce(), Cluster(2, FAST))
    assert found == pytest.approx(2000, rel=1e-6)
    assert break_even(profile, (1,), AllReduce(), AllReduce(), Cluster(2, FAST)) is None
    assert break_even(profile, (1,), AllReduce("fp16", 2), AllReduce(), Cluster(2, FAST)) == math.inf


# The paper's clusters


@pytest.fixture(scope="module")
def parameters() -> dict[str, list[ParameterInfo]]:
    return {net: parameters_of(net) for net in paper.BATCH}


@pytest.mark.parametrize("net", paper.BATCH)
@pytest.mark.parametrize("num_gpus", [8, 512])
def test_gains_on_ethernet_are_within_15_percent_of_the_published_ones(
    net: str, num_gpus: int, parameters: dict[str, list[ParameterInfo]]
) -> None:
    steps = {
        method: paper.predict("paper-ethernet", net, parameters[net], method, num_gpus).step_s
        for method in ("fp32", "terngrad-paper")
    }
    published = [paper.published_s("paper-ethernet", net, method, num_gpus) for method in ("fp32", "terngrad")]
    assert steps["fp32"] / steps["terngrad-paper"] == pytest.approx(published[0] / published[1], rel=0.15)


@pytest.mark.parametrize(("cluster", "net"), paper.PUBLISHED)
def test_what_the_model_was_fitted_to_it_gives_back(
    cluster: str, net: str, parameters: dict[str, list[ParameterInfo]]
) -> None:
    alone = paper.predict(cluster, net, parameters[net], "fp32", 1)
    assert alone.step_s == pytest.approx(paper.published_s(cluster, net, "fp32", 1))
    pair = paper.predict(cluster, net, parameters[net], "fp32", 8)
    assert pair.step_s == pytest.approx(paper.published_s(cluster, net, "fp32", 8), rel=0.03)
    assert pair.bound == "bandwidth"


def test_the_papers_codes_are_as_small_as_it_says(parameters: dict[str, list[ParameterInfo]]) -> None:
    ratios = {}
    for net, infos in parameters.items():
        fp32, ternary = (paper.predict("paper-ethernet", net, infos, m, 8) for m in ("fp32", "terngrad-paper"))
        ratios[net] = fp32.bytes_sent / ternary.bytes_sent
    assert ratios == pytest.approx({"alexnet": 8, "googlenet": 5, "vgg-a": 11}, rel=0.1)


@pytest.mark.parametrize(
    ("cluster", "net", "num_gpus", "wrong"),
    [
        ("moon", "alexnet", 8, "moon"),
        ("paper-ethernet", "lenet", 8, "lenet"),
        ("paper-ethernet", "alexnet", 6, "6 GPUs"),
    ],
)
def test_what_the_paper_has_not_is_refused(
    cluster: str, net: str, num_gpus: int, wrong: str, parameters: dict[str, list[ParameterInfo]]
) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        paper.predict(cluster, net, parameters["alexnet"], "fp32", num_gpus)
