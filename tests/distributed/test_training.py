"""Training runs with real workers: what they record, that they resume exactly, and that nothing outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from terngrad.recipes import Evaluation, Task
from terngrad.train import Run, TrainConfig, TrainingFailed, read_run, resume
from terngrad.train import train as start
from terngrad.train.virtual import OneProcess
from terngrad.train.workers import DDPWorker, Workers

from .harness import run_ranks, values

pytestmark = pytest.mark.distributed

FEEDBACK = "terngrad:error_feedback=true"
STEPS, EVERY = 90, 20  # so many that a run is never over before it can be disturbed
SETTINGS: dict[str, Any] = {
    "steps": STEPS, "log_every": 1, "eval_every": 30, "checkpoint_every": EVERY, "measure_every": 25,
}  # fmt: skip


def nobody(event: dict[str, Any]) -> None:
    """Watches, and takes no notice."""


def train(folder: Path, method: str, watcher: Callable[[dict[str, Any]], None] = nobody, **settings: Any) -> Run:
    return start(TrainConfig.of("digits", method, **{**SETTINGS, **settings}), folder, watcher)


def saved(run: Run, rank: int = 0) -> dict[str, Any]:
    """What a rank has saved after the last step."""
    path = run.path / "checkpoints" / f"step-{run.config['steps']}" / f"rank{rank}.pt"
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def equal(one: Any, other: Any) -> bool:
    """Whether two nests of mappings, lists and tensors hold the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def children(parent: int) -> dict[int, int]:
    """Ranks of the workers that a process has started, with their process ids."""
    workers = (int(entry.name) for entry in Path("/proc").glob("[0-9]*") if is_worker_of(entry, parent))
    return {int(environment(pid)["RANK"]): pid for pid in workers}


def is_worker_of(entry: Path, parent: int) -> bool:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        return int(fields[1]) == parent and b"terngrad.train.worker" in (entry / "cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "terngrad", *arguments]


def options(folder: Path, method: str) -> list[str]:
    given = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    return ["train", "digits", f"--method={method}", "--workers=2", f"--out={folder}", *given]


def steps_so_far(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b'"event": "step"') if path.exists() else 0


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two workers that nobody disturbs."""
    return train(tmp_path_factory.mktemp("straight") / "run", FEEDBACK)


# What is recorded


def test_a_run_leaves_a_folder_that_read_run_reads(straight: Run) -> None:
    assert straight.config["method"] == FEEDBACK
    assert {"versions", "commit", "cpu", "cpus", "backend", "date", "command"} <= straight.environment.keys()
    assert straight.start is not None
    assert straight.start["dense_bytes_per_step"] == 4 * straight.start["parameters"]  # a ring of two sends it once
    assert [event["step"] for event in straight.steps] == list(range(1, STEPS + 1))
    assert [event["step"] for event in straight.evals] == [30, 60, 90]
    assert [event["step"] for event in straight.layers] == [1, 26, 51, 76]
    assert {"numel", "density", "scaler", "relative_error"} <= straight.layers[0]["layers"]["6.weight"].keys()
    assert straight.end is not None
    assert straight.end["final"] == straight.evals[-1]["value"]
    assert sorted(path.name for path in (straight.path / "checkpoints").iterdir()) == ["step-80", "step-90"]


def test_times_of_a_step_add_up(straight: Run) -> None:
    for event in straight.steps:
        assert event["compute_s"] + event["exposed_s"] == pytest.approx(event["step_s"])
        assert min(event["encode_s"], event["exchange_s"], event["decode_s"]) > 0
    assert straight.steps[-1]["seconds"] == pytest.approx(sum(event["step_s"] for event in straight.steps))


def test_bytes_are_those_of_the_steps_alone(straight: Run) -> None:
    sent = [event["bytes_sent"] for event in straight.steps]
    assert straight.start is not None
    bits = 8 * sent[0] / straight.start["parameters"]
    assert 1.6 < bits < 1.75  # what the ternary code takes, and a little for headers and small parameters
    # Neither evaluations nor checkpoints are in them; after the first step DDP has other buckets.
    assert len({after - before for before, after in pairwise(sent[1:])}) == 1


# Resuming


def end_at(step: int, folder: Path, number: signal.Signals, *arguments: str) -> int:
    """Sends a signal to a launcher after some steps; gives its exit code when no worker is left."""
    with subprocess.Popen(command(*arguments), stderr=subprocess.DEVNULL) as launcher:
        wait_until(lambda: steps_so_far(folder) > step, f"{step} steps")
        workers = children(launcher.pid)
        launcher.send_signal(number)
    assert sorted(workers) == [0, 1]
    if number == signal.SIGKILL:  # the workers have to notice by themselves
        wait_until(lambda: not any(map(alive, workers.values())), "the end of the workers")
    assert not any(map(alive, workers.values()))
    return launcher.returncode


def test_a_run_whose_launcher_was_ended_and_killed_leaves_no_worker_and_resumes_exactly(
    straight: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert end_at(EVERY + 3, folder, signal.SIGTERM, *options(folder, FEEDBACK)) == 143
    assert end_at(2 * EVERY + 3, folder, signal.SIGKILL, "train", f"--resume={folder}") == -signal.SIGKILL
    resumed = resume(folder, nobody)
    assert_same_course(resumed, straight)
    assert len(resumed.environment["resumed"]) == 2


def assert_same_course(resumed: Run, straight: Run) -> None:
    """The same parameters, optimizer and residuals, bit for bit; every step recorded once, with the same loss."""
    for rank in range(2):
        mine, theirs = saved(resumed, rank), saved(straight, rank)
        assert equal(mine["workers"], theirs["workers"])
    assert equal(saved(resumed)["model"], saved(straight)["model"])
    assert equal(saved(resumed)["optimizer"], saved(straight)["optimizer"])
    for events in ("steps", "evals"):
        found, wanted = getattr(resumed, events), getattr(straight, events)
        assert [(event["step"], event["loss"]) for event in found] == [(e["step"], e["loss"]) for e in wanted]
    assert resumed.end is not None
    assert straight.end is not None
    assert resumed.end["final"] == straight.end["final"]


def test_a_powersgd_run_that_lost_a_worker_resumes_exactly(tmp_path: Path) -> None:
    def kill_a_worker(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == EVERY + 3:
            os.kill(children(os.getpid())[1], signal.SIGKILL)

    method = "powersgd:rank=2"
    straight = train(tmp_path / "straight", method)
    folder = tmp_path / "killed"
    with pytest.raises(TrainingFailed, match=r"rank 1 was killed by SIGKILL(.|\n)*--resume"):
        train(folder, method, kill_a_worker)
    assert children(os.getpid()) == {}
    assert_same_course(resume(folder, nobody), straight)


# Other ways to run


@pytest.mark.parametrize(("workers", "servers", "link"), [(4, 0, "none"), (2, 1, "none"), (2, 0, "1gbit")])
def test_virtual_workers_give_the_bits_of_real_ones(
    request: pytest.FixtureRequest, tmp_path: Path, workers: int, servers: int, link: str
) -> None:
    if link != "none":
        request.getfixturevalue("possible")
    few = {"steps": 6, "eval_every": 6, "checkpoint_every": 6}
    real = train(tmp_path / "real", FEEDBACK, workers=workers, servers=servers, link=link, **few)
    virtual = train(tmp_path / "virtual", FEEDBACK, virtual_workers=workers, vectorize="off", **few)
    assert equal(saved(real)["model"], saved(virtual)["model"])
    assert real.end is not None
    assert (real.end["link"] is None) == (link == "none")


class Points(Task):
    """Random points that belong to four classes."""

    def __init__(self) -> None:
        super().__init__(num_train=512, num_outputs=4)

    def examples(self, indices: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(5)
        return torch.randn(self.num_train, 16, generator=generator)[indices], indices % self.num_outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def evaluate(self, model: nn.Module) -> Evaluation:
        return Evaluation(0.0, 0.0)


def wide_net() -> nn.Module:
    """With what makes a rank's passes depend on more than parameters and batch: dropout and running statistics."""
    torch.manual_seed(1)
    hidden = (nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(*hidden, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))


def course(workers: Workers) -> dict[str, NDArray[Any]]:
    """The model after a few steps; as arrays, which unlike tensors outlive the process they come from."""
    optimizer = torch.optim.SGD(workers.module.parameters(), lr=0.1)
    workers.start(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        done = workers.compute(step)
        assert done.exposed_s >= 0
        optimizer.step()
    return {name: value.numpy().copy() for name, value in workers.module.state_dict().items()}


def wide_config(method: str, **changes: Any) -> TrainConfig:
    return TrainConfig.of("resnet20-cifar10", method, batch=32, **changes)


TORCH_METHODS = ("none", "fp32", "fp16", "powersgd:rank=2")


def courses(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("terngrad", *TORCH_METHODS):
        workers = DDPWorker(wide_config(method), Points(), wide_net(), None, None)
        found[method] = course(workers)
        assert (workers.usage().phases is None) == (method != "terngrad")
    return found


def test_dropout_and_running_statistics_are_the_same_for_virtual_workers_and_all_methods_train() -> None:
    ranks = values(run_ranks(2, courses))
    virtual = course(OneProcess(wide_config("terngrad", virtual_workers=2), Points(), wide_net()))
    for name, value in ranks[0]["terngrad"].items():
        assert np.array_equal(value, virtual[name])
    plain, start = ranks[0]["fp32"]["0.weight"], wide_net().state_dict()["0.weight"].numpy()
    for method in TORCH_METHODS:
        first, second = (rank[method]["0.weight"] for rank in ranks)
        assert np.array_equal(first, second) == (method != "none")
        assert method == "none" or np.linalg.norm(first - plain) < np.linalg.norm(start - plain)


def test_torchrun_starts_the_ranks_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "terngrad"]
    arguments = ["train", "digits", "--steps=4", f"--out={folder}", "--json"]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == str(folder)
    assert read_run(folder).config["workers"] == 2


def test_compare_trains_with_each_method_and_tells_bytes_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from terngrad.cli import app

    report = tmp_path / "report.html"
    methods = "--methods=fp32,terngrad:clip=2,block=512"
    arguments = [
        "compare",
        "digits",
        methods,
        "--steps=12",
        f"--out={tmp_path / 'runs'}",
        f"--report={report}",
        "--json",
    ]
    app(arguments, standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["runs"]] == ["fp32", "terngrad:clip=2,block=512"]
    plain, ternary = found["runs"]
    assert plain["ratio"] == pytest.approx(1, abs=0.05)
    assert ternary["ratio"] > 15
    assert plain["bytes_sent_per_step"] == pytest.approx(plain["dense_bytes_per_step"], rel=0.05)
    assert "terngrad:clip=2,block=512" in report.read_text()
    assert read_run(ternary["run"]).config["method"] == ternary["method"]
