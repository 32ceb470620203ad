"""The benchmarks in a tiny configuration: that they run, what they write, and that their counters count."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY_KERNELS = ("--numel", "5003", "--repeats", "2", "--reference-numel", "1000", "--reference-repeats", "1")
TINY_HOOKS = (
    "--link",
    "none",
    "--width",
    "64",
    "--depth",
    "3",
    "--batch",
    "2",
    "--steps",
    "2",
    "--steps-per-turn",
    "2",
)


@pytest.fixture(autouse=True)
def _benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_benchmark(program: str, path: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What a benchmark wrote to its JSON file and to standard output."""
    command = [sys.executable, str(BENCHMARKS / program), "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


def assert_provenance(result: dict[str, Any]) -> None:
    found = result["provenance"]
    assert {
        "commit",
        "modified",
        "changed_meanwhile",
        "date",
        "versions",
        "backend",
        "cpu",
        "cpus",
        "cpu_time",
        "arguments",
    } <= found.keys()
    assert {"python", "torch", "numpy", "terngrad"} <= found["versions"].keys()
    assert "seed" in found["arguments"]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """One run of bench_kernels."""
    return run_benchmark("bench_kernels.py", tmp_path_factory.mktemp("bench") / "kernels.json", *TINY_KERNELS)


def test_bench_kernels_writes_a_ratio_to_the_copy_for_every_kernel(kernels: tuple[dict[str, Any], str]) -> None:
    result, table = kernels
    assert_provenance(result)
    assert result["kernels"]["copy"]["ratio"]["median"] == 1
    wanted = {"statistics", "encode two-bit", "encode base3", "average 2 two-bit", "average 2 base3", "error base3"}
    wanted |= {f"{what} levels {count}" for what in ("sum", "average") for count in (2, 4)} | {"cast to fp16"}
    assert wanted <= result["kernels"].keys()
    wanted = {"accumulate + select, clear", "sam: accumulate + select, clear", "scatter mean 4"}
    assert wanted <= result["sparse"].keys()
    for name, found in [*result["kernels"].items(), *result["sparse"].items()]:
        assert found["ms"]["low"] <= found["ms"]["median"] <= found["ms"]["high"]
        assert found["ratio"]["pairs"] == 2
        assert name in table


def test_bench_kernels_writes_speed_and_bits_of_the_entropy_coder(kernels: tuple[dict[str, Any], str]) -> None:
    result, table = kernels
    wanted = {"base3, 1%", "base3, 10%", "base3, 35%", "sums of 2, 10%", "sums of 4, 10%", "sums of 8, 10%"}
    assert result["entropy"].keys() == wanted
    for name, found in result["entropy"].items():
        assert name in table
        assert 0 < found["limit_bits_per_value"] < found["bits_per_value"]
        for what in ("encode", "decode"):
            assert found[what]["gradient_gb_per_s"] > 0
            assert found[what]["ratio"]["pairs"] == 2


@pytest.mark.distributed
def test_bench_hooks_writes_times_and_bytes_of_every_method(tmp_path: Path) -> None:
    methods = ["no-sync", "ddp-silent", "ddp", "ddp-fp16", "powersgd-1", "fp16", "terngrad:dense_below=0"]
    options = (*TINY_HOOKS, "--data", str(tmp_path), "--methods", *methods)
    result, table = run_benchmark("bench_hooks.py", tmp_path / "hooks.json", *options)
    assert_provenance(result)
    assert str(tmp_path) not in json.dumps(result)
    assert list(result["methods"]) == methods
    for name, found in result["methods"].items():
        assert found["speedup"]["ddp"]["pairs"] == result["pairs"] == 2
        assert found["seconds"]["median"] > 0
        assert name in table
    dense = 4 * result["num_parameters"]  # a ring of two sends the gradient once
    assert result["methods"]["ddp"]["bytes_per_step"]["socket_sent"] == pytest.approx(dense, rel=0.05)
    ternary = result["methods"]["terngrad:dense_below=0"]
    assert ternary["bits_per_parameter"] < 3
    assert ternary["phases_s"].keys() == {"encode_s", "exchange_s", "decode_s"}
    assert result["methods"]["fp16"]["stats_to_socket"] == pytest.approx(1, rel=0.05)


@pytest.mark.distributed
def test_bench_hooks_reports_overhead_as_a_ratio_to_plain_ddp(tmp_path: Path) -> None:
    result, _ = run_benchmark("bench_hooks.py", tmp_path / "overhead.json", *TINY_HOOKS, "--overhead")
    assert_provenance(result)
    assert result["methods"]["ddp"]["ratio"]["median"] == 1
    assert result["methods"]["terngrad"]["ratio"]["pairs"] == 2


@pytest.mark.distributed
def test_bench_hooks_reports_memory_beyond_plain_ddp(tmp_path: Path) -> None:
    options = (*TINY_HOOKS, "--memory", "--sample-steps", "1", "2", "--methods", "ddp", "terngrad")
    result, _ = run_benchmark("bench_hooks.py", tmp_path / "memory.json", *options)
    assert_provenance(result)
    samples = result["methods"]["terngrad"]
    assert [sample["step"] for sample in samples] == [1, 2]
    assert samples[0]["scratch_bytes"] > 0
    assert all({"rss_bytes", "peak_bytes", "extra_rss", "extra_peak"} <= sample.keys() for sample in samples)


def test_a_link_that_cannot_be_made_is_an_error_that_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_hooks

    monkeypatch.setattr("shutil.which", lambda name, path: None)
    wanted = bench_hooks.opened(Namespace(hosts=2, link="1gbit"))
    with pytest.raises(SystemExit, match=r"iproute2.*--link none"), wanted:
        pass


@pytest.mark.distributed
def test_bench_hooks_measures_over_the_link_of_a_lab_beside_what_was_predicted(possible: None, tmp_path: Path) -> None:
    options = (*TINY_HOOKS, "--link", "1gbit", "--predict", "--methods", "ddp", "terngrad:dense_below=0")
    result, _ = run_benchmark("bench_hooks.py", tmp_path / "hooks.json", *options)
    assert result["link"]["rate_bits_per_s"] == 10**9
    assert len(result["link"]["goodput_bits_per_s"]) == 2
    for found in result["methods"].values():
        sent = found["bytes_per_step"]
        assert sent["interface_sent"] > sent["socket_sent"] > 0
        assert found["predicted_s"] > 0


def test_socket_counters_are_the_bytes_that_were_sent() -> None:
    import wire

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = wire.read_counts("lo")
            sender.sendall(bytes(10_000))
            assert len(receiver.recv(10_000, socket.MSG_WAITALL)) == 10_000
            moved = wire.read_counts("lo") - before
    assert moved.socket_sent == 10_000
    assert moved.socket_received == 10_000
    assert moved.interface_sent > 10_000
