"""One rank of bench_hooks: `hook_worker.py JOB RANK`, with the job and this rank's result as JSON files.

All ranks run the same turns in the same order. In a turn one method trains its own copy of the model: one step that is
not timed (after a pause TCP starts slowly, which it does not in training), then the timed ones, each behind a barrier.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import wire
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import terngrad

NO_SYNC, DDP, DDP_FP16, POWERSGD = "no-sync", "ddp", "ddp-fp16", "powersgd-"
WARMUP_STEPS = 3  # DDP rebuilds its buckets after the first; PowerSGD starts with the third
_PHASES = ("encode_s", "exchange_s", "decode_s")


@dataclass(frozen=True)
class Job:
    """What all ranks do. Methods not named above are specs for terngrad.attach."""

    kind: str  # "steps" or "memory"
    world_size: int
    folder: str  # for the rendezvous and the results
    interface: str
    methods: list[str]
    rounds: int
    steps_per_turn: int
    sample_steps: list[int]
    width: int
    depth: int
    batch: int
    bucket_view: bool  # gradients are views of DDP's buckets, for all methods alike
    pin: bool  # each rank to a core of its own, where there are as many
    seed: int


@dataclass
class Record:
    """What was measured of one method on one rank."""

    seconds: list[float] = field(default_factory=list)  # of every timed step
    cpu_seconds: list[float] = field(default_factory=list)  # of all threads of the process, in the same steps
    page_faults: list[float] = field(default_factory=list)  # likewise
    num_steps: int = 0  # that the counts below are of: timed or not, without warm-up
    counts: wire.Counts = wire.ZERO
    stats: dict[str, float] = field(default_factory=dict)  # what handle.stats() grew by

    def series(self) -> tuple[list[float], list[float], list[float]]:
        return self.seconds, self.cpu_seconds, self.page_faults


def _usage() -> tuple[float, float, float]:
    """The clock, this process's CPU seconds and its page faults."""
    return time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def make_model(job: Job) -> nn.Sequential:
    """A deep perceptron, the same on every rank."""
    torch.manual_seed(job.seed)
    layers: list[nn.Module] = []
    for _ in range(job.depth):
        layer = nn.Linear(job.width, job.width)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # gradients of one size in all layers
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Trainer:
    """A method with its own copy of the model."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        one_bucket = name.startswith(POWERSGD)  # it issues collectives from callbacks: several buckets race on gloo
        self.model = DistributedDataParallel(
            make_model(job), bucket_cap_mb=4096 if one_bucket else None, gradient_as_bucket_view=job.bucket_view
        )
        self.handle = self._connect()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(job.seed + 1 + dist.get_rank())
        self.inputs = torch.randn(job.batch, job.width, generator=generator)
        self.targets = torch.randn(job.batch, job.width, generator=generator)

    def _connect(self) -> terngrad.Handle | None:
        """Takes the model's hook slot, where the method needs it."""
        if self.name in (NO_SYNC, DDP):
            return None
        if self.name == DDP_FP16:
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
            return None
        if self.name.startswith(POWERSGD):
            rank = int(self.name.removeprefix(POWERSGD))
            state = powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powersgd.powerSGD_hook)
            return None
        return terngrad.attach(self.model, self.name)

    def step(self) -> None:
        """Forward, backward with whatever communication there is, and the optimizer."""
        local = self.model.no_sync() if self.name == NO_SYNC else contextlib.nullcontext()
        with local:
            loss: Tensor = nn.functional.mse_loss(self.model(self.inputs), self.targets)
            torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stats(self) -> dict[str, float]:
        if self.handle is None:
            return {}
        found = self.handle.stats()
        return {key: found[key] for key in ("bytes_sent", "bytes_received", *_PHASES)}


def take_turn(trainer: Trainer, record: Record, job: Job) -> None:
    """One step to settle, then the timed ones."""
    dist.barrier()
    counts, stats = wire.read_counts(job.interface), trainer.stats()
    for step in range(-1, job.steps_per_turn):
        dist.barrier()
        before = _usage()
        trainer.step()
        if step >= 0:
            for series, now, then in zip(record.series(), _usage(), before, strict=True):
                series.append(now - then)
    dist.barrier()  # behind it, everyone has received all that this rank sent
    record.counts += wire.read_counts(job.interface) - counts
    record.num_steps += 1 + job.steps_per_turn
    for key, value in trainer.stats().items():
        record.stats[key] = record.stats.get(key, 0) + value - stats[key]


def run_steps(job: Job) -> dict[str, Any]:
    """All methods in turn, in an order that is shuffled anew every round, alike on all ranks."""
    trainers = {name: Trainer(name, job) for name in job.methods}
    records = {name: Record() for name in job.methods}
    for trainer in trainers.values():
        for _ in range(WARMUP_STEPS):
            trainer.step()
    for number in range(job.rounds):
        order = random.Random(f"{job.seed} {number}").sample(job.methods, len(job.methods))
        for name in order:
            take_turn(trainers[name], records[name], job)
    num_parameters = sum(p.numel() for p in trainers[job.methods[0]].model.parameters())
    return {"num_parameters": num_parameters, "methods": {name: asdict(record) for name, record in records.items()}}


def run_memory(job: Job) -> dict[str, Any]:
    """One method, and the memory of this process after some of its steps."""
    trainer = Trainer(job.methods[0], job)
    samples = []
    for step in range(1, max(job.sample_steps) + 1):
        trainer.step()
        if step in job.sample_steps:
            scratch = trainer.handle.stats()["scratch_bytes"] if trainer.handle else 0
            samples.append({"step": step, "scratch_bytes": scratch, **resident_bytes()})
    gradient_bytes = sum(p.nbytes for p in trainer.model.parameters())
    return {"gradient_bytes": gradient_bytes, "samples": samples}


def resident_bytes() -> dict[str, int]:
    """The resident memory of this process, now and at its peak."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"rss_bytes": 1024 * int(lines["VmRSS"].split()[0]), "peak_bytes": 1024 * int(lines["VmHWM"].split()[0])}


def pin(rank: int, world_size: int) -> None:
    """Gives this rank a core of its own, as hosts have; leaves it to the scheduler where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= world_size:
        os.sched_setaffinity(0, {cores[rank]})


def main() -> None:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    rank, folder = int(sys.argv[2]), Path(job.folder)
    torch.set_num_threads(1)
    if job.pin:
        pin(rank, job.world_size)
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",  # and not over the link that is measured
        rank=rank,
        world_size=job.world_size,
        timeout=dt.timedelta(seconds=120),
    )
    result = run_memory(job) if job.kind == "memory" else run_steps(job)
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
