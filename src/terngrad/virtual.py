"""Virtual workers: the gradients of N workers in one process, through the same methods and codes as N processes.

Only the network is missing. Given the same gradients, the average is the one that N processes get, bit for bit, since
it depends on neither bucketing nor exchange; bytes are what one of the workers would send, from the same frames.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from terngrad.codecs import AnyFrame, Frame, Segment
from terngrad.ddp.checks import cheapest, check_exchange, check_types, exchanges_for
from terngrad.ddp.momentum import MomentumLink
from terngrad.ddp.parameters import averaged_parameters
from terngrad.ddp.phases import Phases
from terngrad.ddp.selection import as_method
from terngrad.ddp.statistics import by_parameter, losses
from terngrad.errors import ConfigurationError
from terngrad.exchange import LENGTH_BYTES, Exchange
from terngrad.methods import AnyBucket, Coder, Method, describe, open_bucket

_STATE_FORMAT = 4


class VirtualWorkers:
    """N workers' gradients of one module, averaged by a method.

    workers = terngrad.VirtualWorkers(net, "terngrad", num_workers=64)
    for rank in range(64):
        loss(net, batch[rank]).backward()
        workers.take(rank)
    workers.average()
    optimizer.step()
    """

    def __init__(
        self,
        module: nn.Module,
        method: Method | str,
        num_workers: int,
        *,
        exchange: str = "auto",
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
        measure_every: int = 100,
    ) -> None:
        if num_workers < 1:
            raise ConfigurationError(f"VirtualWorkers(num_workers={num_workers}): there must be at least one")
        method = as_method(method)
        self._exchanges = exchanges_for(exchange)
        check_exchange(exchange, method)
        parameters = averaged_parameters(module)
        self._parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        check_types(self._parameters, method)
        self._dtype = _one_type(self._parameters)
        self.num_workers = num_workers
        self._segments, total = _lay_out(parameters)
        self._rows = torch.zeros(num_workers, total, dtype=self._dtype, device=next(iter(parameters.values())).device)
        infos = describe(parameters)
        self._coders = [Coder(method, infos, rank, num_workers, operator.index(seed)) for rank in range(num_workers)]
        self._momentum = MomentumLink(optimizer, parameters, self._coders, by_memory=False)
        self._momentum.check(method)
        if num_workers > 1:
            self._momentum.follow(method, lambda _: None)
        self._measure_every = measure_every
        self._phases = Phases()
        self._step = self._epoch = 0
        self._bytes = 0.0
        self._dense_bytes = 0.0

    # One step

    @property
    def rows(self) -> Tensor:
        """All gradients, a row for each worker, with the parameters one behind the other; write them here."""
        return self._rows

    def gradients(self, rank: int) -> dict[str, Tensor]:
        """One worker's gradients as views of its row, by parameter name."""
        pairs = zip(self._parameters.items(), self._segments, strict=True)
        return {
            name: self._rows[rank, segment.source : segment.source + segment.numel].view_as(p)
            for (name, p), segment in pairs
        }

    def take(self, rank: int) -> None:
        """Moves what backward() left in the parameters' grad to a worker's row; none counts as zero."""
        for name, gradient in self.gradients(rank).items():
            parameter = self._parameters[name]
            if parameter.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(parameter.grad)
                parameter.grad = None

    def average(self) -> None:
        """Averages all workers' gradients as they would, and leaves the result in the parameters' grad."""
        if self.num_workers > 1:
            self._exchange()
        self._step += 1
        for name, gradient in self.gradients(0).items():
            self._parameters[name].grad = gradient.clone()

    def _exchange(self) -> None:
        """Leaves the average in the first row."""
        self._momentum.take_loaded()
        count = self.num_workers
        chosen = cheapest(self._exchanges, self.method, lambda exchange: self._frame_for(exchange).expected, count)
        frame = self._frame_for(chosen)
        if isinstance(frame, Frame):
            self._bytes += chosen.bytes_sent(frame, count)
            frame = self._frame(1)  # the average is the same
        codes = [open_bucket(coder, frame, self._rows[i], 0, self._step) for i, coder in enumerate(self._coders)]
        with self._phases("encode"):
            self._share_scalers(codes, frame)
            messages = [_messages_of(code) for code in codes]
        if self._measure_every > 0 and self._step % self._measure_every == 0:
            with self._phases("measure"):
                codes[0].measure()
        with self._phases("decode"):
            self._decode(codes, messages, summed=chosen.num_rounds > 1)
            self._settle(codes)
        self._bytes += (count - 1) * frame.scalers_nbytes
        self._dense_bytes += 2 * (count - 1) / count * 4 * self._rows.shape[1]

    def _decode(self, codes: list[AnyBucket], messages: list[list[Tensor]], summed: bool) -> None:
        """The average in the first row, from messages by sender and shard. Counts those that vary."""
        first = codes[0]
        shards = [list(shard) for shard in zip(*messages, strict=True)]
        if not first.varies:
            first.decode(torch.stack(shards[0]))
        elif summed:
            sums = [code.add(shard) for code, shard in zip(codes, shards, strict=True) if code.varies]
            self._count_varying(messages, sums)
            first.unpack_sums(sums)
        else:
            self._count_varying(messages)
            for number, shard in enumerate(shards):
                first.unpack(shard, number)

    def _count_varying(self, messages: list[list[Tensor]], sums: Sequence[Tensor] = ()) -> None:
        """What a worker sends, as the mean over all workers: messages and sums of their actual lengths."""
        count = self.num_workers
        shards = len(messages[0])
        sent = sum(message.numel() for row in messages for message in row)
        to_others = sent * (count - 1) // count if sums else (count - 1) * sent
        announced = count * (count - 1) * LENGTH_BYTES * (shards + bool(sums))
        self._bytes += (to_others + (count - 1) * sum(total.numel() for total in sums) + announced) / count

    def _share_scalers(self, codes: list[AnyBucket], frame: AnyFrame) -> None:
        if frame.num_units == 0:
            return
        messages = torch.zeros(self.num_workers, frame.scalers_nbytes, dtype=torch.uint8, device=self._rows.device)
        scaled = [code.scaled for code in codes if code.scaled is not None]
        for code, message in zip(scaled, messages, strict=True):
            code.scalers_message(message)
        scaled[0].take_scalers(messages)
        for code in scaled[1:]:
            code.take_scalers_of(scaled[0])

    def _settle(self, codes: list[AnyBucket]) -> None:
        """Ends the step of every worker as decoding the same average would."""
        first = codes[0]
        for code in codes[1:]:
            code.settle_as(first)  # type: ignore[arg-type] # all are of one kind
        for coder in self._coders:
            coder.end_step()

    def _frame_for(self, exchange: Exchange) -> AnyFrame:
        return self._frame(exchange.num_shards(self.num_workers, self._coders[0].num_parts(self._segments)))

    def _frame(self, num_shards: int) -> AnyFrame:
        coder = self._coders[0]
        dense = coder.is_dense_step(self._step, self._epoch)
        return coder.frame(self._segments, self._dtype, dense, num_shards)

    # As the handle's

    @property
    def method(self) -> Method:
        """The method in use."""
        return self._coders[0].method

    @property
    def step(self) -> int:
        """How many averages there have been."""
        return self._step

    def set_epoch(self, epoch: int) -> None:
        """Tells the epoch to methods that send every K-th one dense."""
        self._epoch = epoch

    def stats(self, per_parameter: bool = False) -> dict[str, Any]:
        """Of one worker, as Handle.stats(): bytes from the frames' sizes; seconds of all workers together."""
        coder = self._coders[0]
        result: dict[str, Any] = {
            "steps": self._step,
            "bytes_sent": round(self._bytes),
            "bytes_received": round(self._bytes),
            "dense_bytes": round(self._dense_bytes),
            "ratio": self._dense_bytes / self._bytes if self._bytes else 1.0,
            **{f"{name}_s": seconds for name, seconds in self._phases.seconds.items()},
            **losses(list(coder.measured.values())),
        }
        if per_parameter:
            result["parameters"] = by_parameter(coder, coder.measured)
        return result

    def take_measurements(self) -> dict[str, dict[str, Any]]:
        """Of every parameter, what was measured since the last call, on the first worker."""
        return by_parameter(self._coders[0], self._coders[0].take_measured())

    def state_dict(self) -> dict[str, Any]:
        """All that an exact resume needs."""
        return {
            "format": _STATE_FORMAT,
            "method": self.method.spec,
            "seed": self._coders[0].seed,
            "step": self._step,
            "epoch": self._epoch,
            "num_workers": self.num_workers,
            "bytes": self._bytes,
            "dense_bytes": self._dense_bytes,
            "residuals": [_clones(coder.residuals) for coder in self._coders],
            "velocities": [_clones(coder.velocities) for coder in self._coders],
            "densities": dict(self._coders[0].densities),
            "last_norms": [coder.last_norm for coder in self._coders],
            "momentum": self._momentum.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken, by the same method with as many workers."""
        mine = {"format": _STATE_FORMAT, "method": self.method.spec, "num_workers": self.num_workers}
        for key, value in mine.items():
            if state.get(key) != value:
                raise ConfigurationError(
                    f"load_state_dict: {key} is {state.get(key)!r}, these virtual workers have {value!r}; "
                    "make them as they were when the state was saved"
                )
        self._step, self._epoch = state["step"], state["epoch"]
        self._bytes, self._dense_bytes = state["bytes"], state["dense_bytes"]
        per_worker = (state["residuals"], state["velocities"], state["last_norms"])
        for coder, residuals, velocities, last_norm in zip(self._coders, *per_worker, strict=True):
            coder.seed = state["seed"]
            coder.last_norm = last_norm
            coder.residuals = {i: found.to(self._rows.device, copy=True) for i, found in residuals.items()}
            coder.velocities = {i: found.to(self._rows.device, copy=True) for i, found in velocities.items()}
        self._coders[0].densities = dict(state["densities"])
        self._momentum.load_state_dict(state["momentum"])


def _messages_of(code: AnyBucket) -> list[Tensor]:
    """A worker's messages, one for each shard."""
    if code.varies:
        return code.pack()
    messages = torch.zeros(code.frame.num_shards, code.frame.nbytes, dtype=torch.uint8, device=code.buffer.device)
    code.encode(messages)
    return list(messages)


def _clones(states: Mapping[int, Tensor]) -> dict[int, Tensor]:
    return {i: state.clone() for i, state in states.items()}


def _one_type(parameters: Mapping[str, nn.Parameter]) -> torch.dtype:
    types = {p.dtype for p in parameters.values()}
    if len(types) != 1:
        names = ", ".join(sorted(str(dtype) for dtype in types)) or "none"
        raise ConfigurationError(f"VirtualWorkers: all trained parameters must have one type; this module has {names}")
    return types.pop()


def _lay_out(parameters: Mapping[str, nn.Parameter]) -> tuple[tuple[Segment, ...], int]:
    """Where each trained parameter lies in a row, numbered as in the whole model, and the length of a row."""
    segments = []
    source = 0
    for index, parameter in enumerate(parameters.values()):
        if parameter.requires_grad:
            segments.append(Segment(index, source, parameter.numel()))
            source += parameter.numel()
    return tuple(segments), source
