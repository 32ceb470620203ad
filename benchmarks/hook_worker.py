"""One rank of bench_hooks: `hook_worker.py JOB RANK`, with the job and this rank's result as JSON files.

All ranks run the same turns in the same order. In a turn one method trains the model, wrapped by a DDP of its own:
two steps that are not timed, or three for PowerSGD (DDP builds its buckets anew after the first, and after a pause TCP
starts slowly), then the timed ones, each behind a barrier.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
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
from nets import PERCEPTRON, Loss, perceptron, recipe_net
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import terngrad
from terngrad import perf
from terngrad.exchange import Channel
from terngrad.perf import probes, wires
from terngrad.perf.trial import try_small

NO_SYNC, SILENT, DDP, DDP_FP16, POWERSGD, AUTO = "no-sync", "ddp-silent", "ddp", "ddp-fp16", "powersgd-", "auto"
DDP_NAMES = (NO_SYNC, SILENT, DDP, DDP_FP16)
AT = "@"  # between a spec and the exchange it is to use
SETTLING_STEPS = 2  # with which a turn begins: DDP arranges its buckets anew after the first
POWERSGD_SETTLING_STEPS = 3  # two dense steps and one that makes its buffers
CHOOSING_STEPS = 150  # at most, for "auto" to settle
_PHASES = ("encode_s", "exchange_s", "decode_s")


@dataclass(frozen=True)
class Job:
    """What all ranks do. Methods not named above are specs for terngrad.attach, with "@EXCHANGE" where it matters."""

    kind: str  # "steps" or "memory"
    world_size: int
    folder: str  # for the rendezvous and the results
    interface: str
    methods: list[str]
    rounds: int
    steps_per_turn: int
    sample_steps: list[int]
    net: str
    data: str  # a folder; "": where recipes look by themselves
    width: int  # of the perceptron, as the next
    depth: int
    batch: int  # examples of each rank and step
    bucket_view: bool  # gradients are views of DDP's buckets, for all methods alike
    momentum: float  # of SGD, which sparse methods take over
    pin: bool  # each rank to a core of its own, where there are as many
    predict: bool  # also what the performance model says
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
    chosen: list[str] = field(default_factory=list)  # by "auto", in each turn

    def series(self) -> tuple[list[float], list[float], list[float]]:
        return self.seconds, self.cpu_seconds, self.page_faults


def _usage() -> tuple[float, float, float]:
    """The clock, this process's CPU seconds and its page faults."""
    return time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _done(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


class Method:
    """A method, and what it keeps from one turn to the next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_powersgd = name.startswith(POWERSGD)
        if self.is_powersgd:
            rank = int(name.removeprefix(POWERSGD))
            self._powersgd = powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)

    def connect(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> terngrad.Handle | None:
        """Takes the model's hook slot, where the method needs it."""
        if self.name in (NO_SYNC, DDP):
            return None
        if self.name == SILENT:
            model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
            return None
        if self.name == DDP_FP16:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
            return None
        if self.is_powersgd:
            model.register_comm_hook(self._powersgd, powersgd.powerSGD_hook)
            return None
        spec, _, exchange = self.name.partition(AT)
        return terngrad.attach(model, spec, exchange=exchange or "auto", optimizer=optimizer)


class Trainer:
    """The model in a method's turn."""

    def __init__(self, method: Method, module: nn.Module, loss: Loss, bucket_view: bool, momentum: float = 0.0) -> None:
        self.name = method.name
        self.model = DistributedDataParallel(
            module,
            bucket_cap_mb=4096 if method.is_powersgd else None,  # its collectives race on gloo with several buckets
            gradient_as_bucket_view=bucket_view,
            init_sync=False,  # ranks have made the same model, and it need not cross the link in every turn
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=momentum)
        self.handle = method.connect(self.model, self.optimizer)
        self._loss = loss

    def step(self) -> None:
        """Forward, backward with whatever communication there is, and the optimizer."""
        with self.model.no_sync() if self.name == NO_SYNC else contextlib.nullcontext():
            torch.autograd.backward(self._loss(self.model))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stats(self) -> dict[str, float]:
        if self.handle is None:
            return {}
        found = self.handle.stats()
        return {key: found[key] for key in ("bytes_sent", "bytes_received", *_PHASES)}


def take_turn(method: Method, module: nn.Module, loss: Loss, record: Record, job: Job) -> None:
    """Steps to settle, then the timed ones."""
    trainer = Trainer(method, module, loss, job.bucket_view, job.momentum)
    for _ in range(POWERSGD_SETTLING_STEPS if method.is_powersgd else SETTLING_STEPS):
        trainer.step()
    for _ in range(CHOOSING_STEPS):
        if trainer.handle is None or not trainer.handle.choosing:
            break
        trainer.step()
    dist.barrier()
    counts, stats = wire.read_counts(job.interface), trainer.stats()
    for _ in range(job.steps_per_turn):
        dist.barrier()
        before = _usage()
        trainer.step()
        for series, now, then in zip(record.series(), _usage(), before, strict=True):
            series.append(now - then)
    dist.barrier()  # behind it, everyone has received all that this rank sent
    record.counts += wire.read_counts(job.interface) - counts
    record.num_steps += job.steps_per_turn
    for key, value in trainer.stats().items():
        record.stats[key] = record.stats.get(key, 0) + value - stats[key]
    if trainer.handle is not None:
        record.chosen += [decision.method for decision in trainer.handle.decisions[-1:]]
        trainer.handle.detach()


def make_net(job: Job) -> tuple[nn.Module, Loss]:
    rank = dist.get_rank()
    if job.net == PERCEPTRON:
        return perceptron(job.width, job.depth, job.batch, job.seed, rank)
    return recipe_net(job.net, Path(job.data) if job.data else None, job.batch, job.seed, rank, job.world_size)


def run_steps(job: Job) -> dict[str, Any]:
    """All methods in turn, in an order that is shuffled anew every round, alike on all ranks."""
    module, loss = make_net(job)
    methods = {name: Method(name) for name in job.methods}
    records = {name: Record() for name in job.methods}
    probed: dict[str, Any] = {}
    profiles: list[perf.Profile] = []
    for number in range(job.rounds):
        if job.predict:
            profiles.append(slowest_profile(job, module, loss))
            if number == job.rounds // 2:
                probed = probe(job, module, profiles[-1])
            module.zero_grad()
        for name in random.Random(f"{job.seed} {number}").sample(job.methods, len(job.methods)):
            take_turn(methods[name], module, loss, records[name], job)
            gc.collect()  # DDP refers to itself, and takes its hooks off the parameters only when it is gone
    return {
        "num_parameters": sum(p.numel() for p in module.parameters()),
        "methods": {name: asdict(record) for name, record in records.items()},
        "probed": {**probed, "profile": in_the_middle(profiles).describe()} if probed else {},
    }


def slowest_profile(job: Job, module: nn.Module, loss: Loss) -> perf.Profile:
    """A step without communication, as long as on the rank that takes longest for it while all compute."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=job.momentum)
    return probes.measure_profile(module, lambda: loss(module), optimizer, repeats=3, slowest=wires.slowest_rank)


def in_the_middle(profiles: list[perf.Profile]) -> perf.Profile:
    """The machine is not always as fast: of profiles from all rounds the median one."""
    return sorted(profiles, key=lambda found: found.compute_s)[len(profiles) // 2]


def probe(job: Job, module: nn.Module, profile: perf.Profile) -> dict[str, Any]:
    """What else the performance model needs, measured now: the slowest rank's codecs, and all links at once."""
    channel = Channel(dist.distributed_c10d._get_default_group())
    link = wires.measure_link(channel, torch.device("cpu")) if job.world_size > 1 else perf.Link(0.0, 1e12)
    own = {spec: terngrad.from_spec(spec) for spec in job.methods if spec not in DDP_NAMES and _is_predicted(spec)}
    largest, sample = perf.largest_bucket(profile, perf.default_plan(profile)), probes.sample_of(module)
    dist.barrier()  # hosts that share cores compute at the same time
    codecs = {spec: probes.measure_codec(method, sample, largest) for spec, method in own.items()}
    dist.barrier()
    speeds = probes.measure_speeds()
    everyone: list[Any] = [None] * job.world_size
    dist.all_gather_object(everyone, (codecs, speeds))
    codecs = probes.slowest_codecs([found[0] for found in everyone])
    return {
        "link": asdict(link),
        "speeds": [asdict(found[1]) for found in everyone],
        "codecs": {spec: asdict(codec) for spec, codec in codecs.items()},
        "trial": try_small(own, terngrad.attach).describe(),
        "cores": len(os.sched_getaffinity(0)) / (1 if job.pin else job.world_size),
        "bucket_view": job.bucket_view,
    }


def _is_predicted(name: str) -> bool:
    return AT not in name and not name.startswith((POWERSGD, AUTO))


def run_memory(job: Job) -> dict[str, Any]:
    """One method, and the memory of this process after some of its steps."""
    module, loss = make_net(job)
    samples = []
    trainer = Trainer(Method(job.methods[0]), module, loss, job.bucket_view, job.momentum)
    for step in range(1, max(job.sample_steps) + 1):
        trainer.step()
        if step in job.sample_steps:
            scratch = trainer.handle.stats()["scratch_bytes"] if trainer.handle else 0
            samples.append({"step": step, "scratch_bytes": scratch, **resident_bytes()})
    return {"gradient_bytes": sum(p.nbytes for p in module.parameters()), "samples": samples}


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
