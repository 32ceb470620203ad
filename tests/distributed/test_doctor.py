"""The doctor on hosts of a lab that something is really wrong with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import terngrad as tg
from distributed.harness import run_ranks, values
from distributed.lab_traces import wait_until
from terngrad.exchange import Channel
from terngrad.lab import Lab
from terngrad.perf import Link, default_plan
from terngrad.perf.diagnosis import Trial
from terngrad.perf.doctor import TRIAL_BYTES
from terngrad.perf.trial import try_small
from terngrad.perf.wires import Wire, measure_link, measure_wires, pairs_of

pytestmark = pytest.mark.distributed

COMMAND = [sys.executable, "-m", "terngrad", "doctor", "--methods", "fp16", "--json"]
BURN = [sys.executable, "-c", "while True: pass"]


def on_core(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command]


def examine(
    lab: Lab, commands: Sequence[list[str]], once_they_talk: Callable[[], None] | None = None, **changes: dict[str, str]
) -> tuple[dict[str, Any], list[int]]:
    """What rank 0 found, and how all ended; `host1={...}` adds to the environment there."""
    processes = [
        lab.start(
            host,
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **lab.environment(host),
                "OMP_NUM_THREADS": "1",
                **changes.get(f"host{host}", {}),
            },
        )
        for host, command in enumerate(commands)
    ]
    try:
        if once_they_talk is not None:
            assert wait_until(lambda: min(moved.sent for moved in lab.link_bytes()) > 100_000, 200)
            once_they_talk()
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return json.loads(outputs[0]), [process.returncode for process in processes]


def test_a_slow_host_and_a_limited_link_are_named(possible: None) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or shutil.which("taskset") is None:
        pytest.skip("no host can be made slower than the others without two cores and taskset")
    with Lab(3, "100mbit") as lab, contextlib.ExitStack() as ended:
        limit = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        limit += ["rate", "5mbit", "burst", "16000b", "latency", "50ms"]
        if lab.start(2, limit, stderr=subprocess.DEVNULL).wait(timeout=30):
            pytest.skip("the link of a lab's host can be changed by root only")

        def burn() -> None:
            """Host 1 gets a sixth of a core; the others, which share one, get half each."""
            for _ in range(5):
                ended.callback(lab.start(1, on_core(cores[0], BURN)).kill)

        pinned = [on_core(cores[host != 1], COMMAND) for host in range(3)]
        found, codes = examine(lab, pinned, burn)
    assert codes == [0, 0, 0]
    named = {(finding["what"], *finding["ranks"]) for finding in found["findings"]}
    assert {("slow-host", 1), ("slow-link", 2)} <= named
    assert not {("slow-link", 0), ("slow-link", 1)} & named
    rates = {(wire["sender"], wire["receiver"]): 8 * wire["bytes_per_s"] for wire in found["wires"]}
    assert len(rates) == 6
    assert rates[2, 0] < 6e6
    assert rates[0, 2] > 2e7
    predicted = {row["method"]: row["step_s"] for row in found["predictions"]}
    assert predicted["fp16"] < predicted["ddp"]
    assert found["trial"] is None  # at 5 Mb/s it would take minutes


def test_a_rank_on_the_wrong_interface_is_named_before_anyone_waits_for_it(possible: None) -> None:
    with Lab(2) as lab:
        found, codes = examine(lab, [COMMAND, COMMAND], host1={"GLOO_SOCKET_IFNAME": "lo"})
    assert codes == [1, 1]
    (finding,) = found["findings"]
    assert (finding["what"], finding["ranks"], finding["fatal"]) == ("interface", [1], True)
    assert "GLOO_SOCKET_IFNAME=eth0" in finding["text"]
    assert "Rank 1 cannot be reached" in found["verdict"]


def given_an_interface(lab: Lab, host: int, name: str, address: str) -> None:
    """A bridge that leads nowhere, as docker makes one."""
    for command in (
        ["link", "add", name, "type", "bridge"],
        ["addr", "add", address, "dev", name],
        ["link", "set", name, "up"],
    ):
        assert lab.start(host, ["ip", *command], stderr=subprocess.DEVNULL).wait(timeout=30) == 0


def test_hosts_whose_bridges_have_one_address_are_told_so_before_anything_fails(possible: None) -> None:
    with Lab(2) as lab:
        for host in range(2):
            given_an_interface(lab, host, "docker0", "172.17.0.1/16")
        on_bridge = {"GLOO_SOCKET_IFNAME": "docker0"}
        found, codes = examine(lab, [COMMAND, COMMAND], host0=on_bridge, host1=on_bridge)
        one_is, one_codes = examine(lab, [COMMAND, COMMAND], host1=on_bridge)
    assert codes == one_codes == [1, 1]
    (finding,) = found["findings"]
    assert (finding["what"], finding["ranks"], finding["fatal"]) == ("interface", [0, 1], True)
    assert "have the same address, docker0 172.17.0.1" in finding["text"]
    assert finding["text"].endswith("eth0")
    assert "Ranks 0, 1 cannot be reached" in found["verdict"]
    (finding,) = one_is["findings"]  # rank 0 finds its own host there, though rank 1 gets through to it
    assert (finding["ranks"], finding["fatal"]) == ([1], True)
    assert "cannot be reached by docker0 172.17.0.1 from rank 0 (Connection refused)" in finding["text"]


def test_an_address_to_which_there_is_no_route_is_named_with_who_tried(possible: None) -> None:
    with Lab(3) as lab:
        given_an_interface(lab, 1, "private0", "10.51.0.1/24")
        found, codes = examine(lab, [COMMAND] * 3, host1={"GLOO_SOCKET_IFNAME": "private0"})
    assert codes == [1, 1, 1]
    (finding,) = found["findings"]
    assert (finding["what"], finding["ranks"], finding["fatal"]) == ("interface", [1], True)
    assert "by private0 10.51.0.1 from ranks 0, 2 (Network is unreachable)" in finding["text"]
    assert "an interface that other hosts reach (eth0)" in finding["text"]


def test_a_rank_whose_packets_are_lost_holds_up_nobody_for_long(possible: None) -> None:
    with Lab(2) as lab:
        given_an_interface(lab, 1, "private0", "10.51.0.1/24")
        hole = ["ip", "route", "add", "10.51.0.0/24", "via", "10.97.9.9", "onlink", "dev", "eth0"]
        neighbour = ["ip", "neigh", "add", "10.97.9.9", "lladdr", "02:00:00:00:00:99", "dev", "eth0"]
        assert [lab.start(0, command).wait(timeout=30) for command in (hole, neighbour)] == [0, 0]
        found, codes = examine(lab, [COMMAND] * 2, host1={"GLOO_SOCKET_IFNAME": "private0"})
    assert codes == [1, 1]
    (finding,) = found["findings"]
    assert "by private0 10.51.0.1 from rank 0 (no answer in 5 s)" in finding["text"]


def test_ranks_that_reach_each_other_by_different_networks_are_told_which(possible: None) -> None:
    with Lab(2) as lab:
        given_an_interface(lab, 1, "private0", "10.51.0.1/24")
        way = ["ip", "route", "add", "10.51.0.0/24", "via", lab.address(1)]
        assert lab.start(0, way).wait(timeout=30) == 0
        found, codes = examine(lab, [COMMAND] * 2, host1={"GLOO_SOCKET_IFNAME": "private0"})
    assert codes == [0, 0]
    (finding,) = [finding for finding in found["findings"] if finding["what"] == "interface"]
    assert (finding["ranks"], finding["fatal"]) == ([0, 1], False)
    assert "rank 0 on 10.97.0.0/16 (eth0), rank 1 on 10.51.0.0/24 (private0)" in finding["text"]
    assert found["predictions"]


def wires_of(rank: int, world_size: int, seconds: float) -> list[Wire]:
    return measure_wires(rank, world_size, torch.device("cpu"), seconds)


@pytest.mark.parametrize(("world_size", "seconds"), [(3, 0.01), (9, 0.0005)])
def test_every_rank_gets_the_same_wires_however_fast_they_are(world_size: int, seconds: float) -> None:
    found = values(run_ranks(world_size, wires_of, seconds))
    assert all(wires == found[0] for wires in found)
    assert {(wire.sender, wire.receiver) for wire in found[0]} == {
        way for pair in pairs_of(world_size) for way in (pair, pair[::-1])
    }
    assert all(wire.bytes_per_s > 0 and wire.latency_s > 0 for wire in found[0])


def link_of_all(rank: int, world_size: int) -> Link:
    return measure_link(Channel(dist.distributed_c10d._get_default_group()), torch.device("cpu"), seconds=0.01)


def test_every_rank_gets_the_same_link() -> None:
    found = values(run_ranks(3, link_of_all))
    assert all(link == found[0] for link in found)
    for link in (found[0], found[0].ring, found[0].half_ring):
        assert link is not None
        assert link.latency_s > 0
        assert link.busy_s >= 0
        assert link.cpu_s > 0


def trial_of(rank: int, world_size: int) -> tuple[Trial, bool]:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    specs = ["terngrad", "sdagc", "terngrad:warmup_steps=1000,codec=entropy"]
    used: list[tg.Handle] = []

    def attach(*args: Any, **options: Any) -> tg.Handle:
        used.append(tg.attach(*args, **options))
        return used[-1]

    found = try_small({spec: tg.from_spec(spec) for spec in specs}, attach)
    for handle in used:
        assert not handle.attached
        stats = handle.stats()
        assert 0 < stats["bytes_sent"] < handle.step * found.profile.numel  # none was sent dense
    return found, torch.equal(before, torch.get_rng_state())


def test_a_trial_times_every_method_alike_on_all_ranks() -> None:
    first, second = values(run_ranks(2, trial_of))
    trial, untouched = first
    assert untouched  # random numbers are the user's
    assert list(trial.steps) == ["ddp", "ddp-fp16", *trial.codecs]
    assert len(trial.codecs) == 3
    assert trial == second[0]
    assert all(seconds > 0 for seconds in trial.steps.values())
    assert len(default_plan(trial.profile)) == 2
    assert 4 * trial.profile.numel == pytest.approx(TRIAL_BYTES, rel=0.01)


def test_ranks_on_one_machine_are_examined_without_a_lab() -> None:
    environment = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            COMMAND,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    found = json.loads(outputs[0])
    assert (outputs[1], len(found["wires"]), len(found["places"])) == ("", 2, 2)
    assert [row["method"] for row in found["predictions"]]
    assert set(found["trial"]["steps"]) == {"ddp", "ddp-fp16", "fp16"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
