"""The doctor on hosts of a lab that something is really wrong with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from terngrad.lab import Lab, LabError

pytestmark = pytest.mark.distributed

COMMAND = [sys.executable, "-m", "terngrad", "doctor", "--methods", "terngrad", "--json"]
BURN = [sys.executable, "-c", "while True: pass"]


def on_core(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command]


def examine(lab: Lab, commands: Sequence[list[str]], **changes: dict[str, str]) -> tuple[dict[str, Any], list[int]]:
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
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return json.loads(outputs[0]), [process.returncode for process in processes]


@pytest.fixture(scope="module")
def possible() -> None:
    try:
        with Lab(1):
            pass
    except LabError as error:
        pytest.skip(str(error))


def test_a_slow_host_and_a_limited_link_are_named_and_no_one_else(possible: None) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: no host can be slower than the others")
    with Lab(3, "100mbit") as lab, contextlib.ExitStack() as ended:
        limit = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        limit += ["rate", "5mbit", "burst", "16000b", "latency", "50ms"]
        if lab.start(2, limit, stderr=subprocess.DEVNULL).wait(timeout=30):
            pytest.skip("the link of a lab's host can be changed by root only")
        for _ in range(4):
            burner = lab.start(1, on_core(cores[0], BURN))
            ended.callback(burner.kill)
        pinned = [on_core(cores[host != 1], COMMAND) for host in range(3)]
        found, codes = examine(lab, pinned)
    assert codes == [0, 0, 0]
    named = {(finding["what"], *finding["ranks"]) for finding in found["findings"]}
    assert {("slow-host", 1), ("slow-link", 2)} <= named
    assert not {("slow-link", 0), ("slow-link", 1)} & named
    rates = {(wire["sender"], wire["receiver"]): 8 * wire["bytes_per_s"] for wire in found["wires"]}
    assert len(rates) == 6
    assert rates[2, 0] < 6e6
    assert rates[0, 2] > 2e7
    predicted = {row["method"]: row["step_s"] for row in found["predictions"]}
    assert predicted["terngrad"] < predicted["ddp-fp16"] < predicted["ddp"]


def test_a_rank_on_the_wrong_interface_is_named_before_anyone_waits_for_it(possible: None) -> None:
    with Lab(2) as lab:
        found, codes = examine(lab, [COMMAND, COMMAND], host1={"GLOO_SOCKET_IFNAME": "lo"})
    assert codes == [1, 1]
    (finding,) = found["findings"]
    assert (finding["what"], finding["ranks"], finding["fatal"]) == ("interface", [1], True)
    assert "GLOO_SOCKET_IFNAME=eth0" in finding["text"]
    assert "Rank 1 cannot be reached" in found["verdict"]
