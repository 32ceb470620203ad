"""Parameter servers: ranks that only add up codes, with the results of the other exchanges bit for bit."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terngrad as tg

from .harness import Outcome, run_ranks, values
from .workloads import Net, digest, message_of, parameters, same, train

pytestmark = pytest.mark.distributed

METHODS = (
    "terngrad",
    "terngrad:codec=two-bit,block=64",
    "terngrad:error_feedback=true",
    "terngrad-paper:dense_below=2048",
    "terngrad:codec=entropy,clip=2,dense_below=3000",  # behind a bucket that varies comes one that does not
    "fp32",
    "fp16",
)
STEPS = 5


def trained(method: str, servers: tg.ParameterServers, exchange: str | tg.ParameterServers) -> tuple[str, dict]:
    """The parameters' fingerprint after a few steps, and what the handle counted."""
    model = DistributedDataParallel(Net(), process_group=servers.workers, bucket_cap_mb=0.02)
    handle = tg.attach(model, method, exchange=exchange, seed=3)
    train(model, dist.get_rank(), range(STEPS))
    stats = handle.stats()
    handle.detach()
    return digest(parameters(model)), stats


def all_exchanges(rank: int, world_size: int, num_servers: int) -> Any:
    """On a worker: fingerprints and bytes by method and exchange. On a server: what it did."""
    servers = tg.ParameterServers(num_servers)
    if servers.is_server:
        return servers.serve()
    found = {}
    for method in METHODS:
        served, stats = trained(method, servers, servers)
        found[method] = [served, *(trained(method, servers, other)[0] for other in ("all-gather", "two-shot"))]
        found[f"{method} bytes"] = (stats["bytes_sent"], stats["bytes_received"])
    servers.close()
    return found


@pytest.mark.parametrize(("num_workers", "num_servers"), [(2, 1), (3, 2)])
def test_servers_train_the_same_bits_as_all_gather_and_two_shot(num_workers: int, num_servers: int) -> None:
    outcomes = values(run_ranks(num_workers + num_servers, all_exchanges, num_servers))
    workers, servers = outcomes[:num_workers], outcomes[num_workers:]
    for method in METHODS:
        assert same([digest for worker in workers for digest in worker[method]]), method
    assert len({workers[0][method][0] for method in METHODS}) == len(METHODS)
    # What workers count as sent and received is what the servers count, but for the scalers, which go among workers.
    pulled = sum(worker[f"{method} bytes"][1] for worker in workers for method in ("fp32", "fp16"))
    assert sum(server.bytes_sent for server in servers) > pulled > 0
    assert same([server.num_buckets for server in servers])
    assert servers[0].num_buckets >= STEPS * len(METHODS)


def bytes_of_dense(rank: int, world_size: int) -> Any:
    servers = tg.ParameterServers(1)
    if servers.is_server:
        return servers.serve()
    _, stats = trained("fp32", servers, servers)
    servers.close()
    return stats


def test_workers_and_servers_count_the_same_bytes() -> None:
    *workers, server = values(run_ranks(3, bytes_of_dense))
    assert sum(worker["bytes_sent"] for worker in workers) == server.bytes_received
    assert sum(worker["bytes_received"] for worker in workers) == server.bytes_sent


def one_dies(rank: int, world_size: int, victim: int) -> None:
    """Trains; in the third step the victim is gone. A server that is the victim never answers anyone."""
    servers = tg.ParameterServers(1)
    dist.barrier()  # all have one
    if servers.is_server:
        if rank == victim:
            os._exit(0)
        servers.serve()
        return
    model = DistributedDataParallel(Net(), process_group=servers.workers)
    tg.attach(model, "terngrad", exchange=servers)
    for step in range(20):
        if step == 2 and rank == victim:
            os._exit(0)
        train(model, rank, [step])


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["worker 0", "worker 1", "the server"])
def test_a_dead_worker_or_server_makes_the_others_raise(victim: int) -> None:
    outcomes: list[Outcome] = run_ranks(3, one_dies, victim, group_timeout_s=10, expect_dead=(victim,))
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.error_type == "ExchangeError", (rank, outcome.error)
            assert "A peer has died, hangs or is out of step" in str(outcome.error)


def one_is_missing(rank: int, world_size: int) -> None:
    if rank == 2:
        os._exit(0)
    tg.ParameterServers(1)


def test_a_rank_that_dies_before_there_are_servers_makes_the_others_raise() -> None:
    for outcome in run_ranks(3, one_is_missing, group_timeout_s=5, expect_dead=(2,))[:2]:
        assert outcome.error_type == "ExchangeError", outcome.error
        assert "ParameterServers: " in str(outcome.error)


def refusals(rank: int, world_size: int) -> list[str]:
    found = [message_of(lambda: tg.ParameterServers(number)) for number in (0, world_size)]  # noqa: B023
    servers = tg.ParameterServers(1)
    if servers.is_server:
        found.append(message_of(lambda: servers.workers))
        servers.serve()
        return found
    found.append(message_of(servers.serve))
    model = DistributedDataParallel(Net(), process_group=servers.workers)
    kept = []  # a handle that could not attach must not keep the servers, even while something refers to it
    try:
        tg.attach(model, "terngrad:shared=false", exchange=servers)
    except tg.ConfigurationError as error:
        kept.append(error)
    own = str(kept[0])
    first = tg.attach(model, "terngrad", exchange=servers)
    second = DistributedDataParallel(Net(), process_group=servers.workers)
    found += [own, message_of(lambda: tg.attach(second, "terngrad", exchange=servers))]
    first.detach()
    tg.attach(second, "terngrad", exchange=servers).detach()
    alone = DistributedDataParallel(Net(), process_group=dist.new_group([rank], use_local_synchronization=True))
    found.append(message_of(lambda: tg.attach(alone, "terngrad", exchange=servers)))
    servers.close()
    servers.close()
    return found


def test_what_cannot_work_is_refused_in_words() -> None:
    worker, _, server = values(run_ranks(3, refusals))
    none, everyone, not_a_server, own_scalers, twice, elsewhere = worker
    assert "ParameterServers(0)" in none
    assert "pass 1 to 2" in none
    assert "ParameterServers(3)" in everyone
    assert "rank 0 is a worker" in not_a_server
    assert "shared=True" in own_scalers
    assert "serve a model already" in twice
    assert "process_group=servers.workers" in elsewhere
    assert "rank 2 is a server" in server[2]


def test_a_layout_survives_its_description() -> None:
    from terngrad.codecs import Frame, Segment, read_description

    segments = [Segment(0, 0, 5000), Segment(2, 5007, 4321)]
    frame = Frame(
        segments, [Segment(1, 5000, 7)], codec="base3", block=512, dense_type=torch.float16, num_shards=3,
        world_size=5,
    )  # fmt: skip
    again = read_description(frame.description)
    assert isinstance(again, Frame)
    assert again.description == frame.description
    assert (again.nbytes, again.sum_nbytes, again.shards[2].dense) == (
        frame.nbytes,
        frame.sum_nbytes,
        frame.shards[2].dense,
    )
    with pytest.raises(tg.WireError, match="description of a bucket"):
        read_description(b'{"ternary": 3}')
