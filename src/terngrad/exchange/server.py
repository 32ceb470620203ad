"""The parameter server: workers push their codes to servers, which add them up, and pull the sums.

A server keeps nothing from one bucket to the next, and parameters never travel. It learns what to do from *orders*,
which worker 0 sends ahead of each bucket: which step and bucket, and how its messages are laid out. Every server has
one shard of every bucket, so K servers share the work and the bytes. All of it are direct sends and receives between a
worker and a server, on a process group of their own; what comes from one rank comes in the order in which it was sent.
A message that varies is announced by its length.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from terngrad.exchange.base import AnyCode, Exchange, Fixed, Phase, Scratch, Sizes, Transfer, Varying
from terngrad.exchange.channel import Channel, Pending
from terngrad.exchange.varying import LENGTH_BYTES, check_length

STOP = -1  # in place of a layout's number
# Tags. What is awaited first gets what comes first by its tag; and a bucket's lengths, or its sum if that does not
# vary, may be awaited before the sum of the bucket ahead of it.
PLAIN, LENGTHS, ANNOUNCED = range(3)


@dataclass(frozen=True)
class Roster:
    """Who is a worker and who is a server: the last ranks of the group are servers."""

    group: dist.ProcessGroup
    num_servers: int

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def workers(self) -> range:
        return range(dist.get_world_size(self.group) - self.num_servers)

    @property
    def servers(self) -> range:
        return range(len(self.workers), dist.get_world_size(self.group))

    def send(self, rank: int, tensor: Tensor, tag: int = PLAIN) -> dist.Work | None:
        return dist.isend(tensor, dist.get_global_rank(self.group, rank), group=self.group, tag=tag)

    def receive(self, rank: int, tensor: Tensor, tag: int = PLAIN) -> dist.Work | None:
        return dist.irecv(tensor, dist.get_global_rank(self.group, rank), group=self.group, tag=tag)

    def send_announced(self, rank: int, tensor: Tensor) -> list[dist.Work | None]:
        return [self.send(rank, torch.tensor([tensor.numel()]), LENGTHS), self.send(rank, tensor, ANNOUNCED)]

    def announcements(self, ranks: range) -> tuple[Pending, Tensor]:
        """The lengths of what these ranks will send, in their order, once what is pending has come."""
        lengths = torch.zeros(len(ranks), 1, dtype=torch.int64)
        works = [self.receive(rank, length, LENGTHS) for rank, length in zip(ranks, lengths, strict=True)]
        return Pending(works), lengths

    def receive_announced(self, ranks: range, lengths: Tensor, most: int) -> list[Tensor]:
        """Everyone's message of the length that it has announced."""
        known = [check_length(int(length), most, rank) for rank, length in zip(ranks, lengths, strict=True)]
        messages = [torch.empty(length, dtype=torch.uint8) for length in known]
        Pending([self.receive(rank, message, ANNOUNCED) for rank, message in zip(ranks, messages, strict=True)]).wait()
        return messages


@dataclass(frozen=True)
class Order:
    """What a server is to do next. The layout's description follows it, where the server does not know it yet."""

    layout: int
    step: int = 0
    bucket: int = 0
    description_bytes: int = 0

    NUM_WORDS: ClassVar[int] = 4

    def to_tensor(self) -> Tensor:
        return torch.tensor([self.layout, self.step, self.bucket, self.description_bytes])


class ServerExchange(Exchange):
    """The exchange as a worker sees it."""

    name = "server"
    num_rounds = 2

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._layouts: dict[bytes, int] = {}  # numbers by description: a method that comes back is known already

    def num_shards(self, world_size: int, num_parts: int) -> int:
        return self.roster.num_servers

    def bytes_sent(self, sizes: Sizes, world_size: int) -> int:
        return self.roster.num_servers * sizes.nbytes

    def open(self, code: AnyCode, channel: Channel, scratch: Scratch, phase: Phase) -> Transfer:
        if code.varies:
            return _VaryingTransfer(self, code, channel, scratch, phase)
        return _FixedTransfer(self, code, channel, scratch, phase)

    def order(self, sizes: Sizes, label: tuple[int, int]) -> list[Tensor]:
        """What goes to every server ahead of a bucket, from worker 0."""
        known = self._layouts.get(sizes.description)
        if known is not None:
            return [Order(known, *label).to_tensor()]
        number = self._layouts[sizes.description] = len(self._layouts)
        description = torch.frombuffer(bytearray(sizes.description), dtype=torch.uint8)
        return [Order(number, *label, description.numel()).to_tensor(), description]

    def stop(self) -> None:
        """Lets the servers go. Worker 0 tells them; for the others there is nothing to do."""
        if self.roster.rank == 0:
            order = Order(STOP).to_tensor()
            Pending([self.roster.send(server, order) for server in self.roster.servers]).wait()


class _ServerTransfer(Transfer):
    """A worker's side. Servers have no GPU: all goes by the CPU."""

    def __init__(
        self, exchange: ServerExchange, code: AnyCode, channel: Channel, scratch: Scratch, phase: Phase
    ) -> None:
        super().__init__(channel, scratch, phase)
        self._exchange = exchange
        self._roster = exchange.roster
        self._label, self.sizes = code.label, code.sizes
        self._leaving: list[Tensor] = []  # must live until they are with the servers

    def _send_orders(self) -> list[dist.Work | None]:
        orders = self._exchange.order(self.sizes, self._label) if self._roster.rank == 0 else []
        self._leaving += orders
        self.channel.count(sent=len(self._roster.servers) * sum(order.nbytes for order in orders), received=0)
        return [self._roster.send(server, order) for server in self._roster.servers for order in orders]


class _FixedTransfer(_ServerTransfer):
    def __init__(self, exchange: ServerExchange, code: Fixed, channel: Channel, scratch: Scratch, phase: Phase) -> None:
        super().__init__(exchange, code, channel, scratch, phase)
        self._code = code

    def send(self) -> None:
        messages = self.scratch("codes", self._roster.num_servers, self.sizes.nbytes)
        with self.phase("encode"):
            self._code.encode(messages)
        with self.phase("exchange"):
            self._push(messages)

    def _push(self, messages: Tensor) -> None:
        """Sends the order and the codes, and is ready for the sums."""
        self._sums = self.scratch("sums", self._roster.num_servers, self.sizes.sum_nbytes)
        self._arriving = torch.empty_like(self._sums, device="cpu") if self._sums.device.type != "cpu" else self._sums
        orders = self._send_orders()
        own = messages.cpu()
        self._leaving.append(own)
        self.channel.count(sent=own.nbytes, received=self._arriving.nbytes)
        sends = map(self._roster.send, self._roster.servers, own)
        self._pending = Pending([*orders, *sends, *map(self._roster.receive, self._roster.servers, self._arriving)])

    @property
    def arriving(self) -> Pending:
        return self._pending

    def receive(self) -> None:
        self._wait(self._pending)
        with self.phase("decode"):
            if self._arriving is not self._sums:
                self._sums.copy_(self._arriving)
            self._code.decode_sums(self._sums)


class _VaryingTransfer(_ServerTransfer):
    def __init__(
        self, exchange: ServerExchange, code: Varying, channel: Channel, scratch: Scratch, phase: Phase
    ) -> None:
        super().__init__(exchange, code, channel, scratch, phase)
        self._code = code

    def send(self) -> None:
        with self.phase("encode"):
            own = self._code.pack()
        self._device = own[0].device
        with self.phase("exchange"):
            sends = self._send_orders()
            for server, message in zip(self._roster.servers, own, strict=True):
                self._leaving.append(message.cpu())
                self.channel.count(sent=message.nbytes + LENGTH_BYTES, received=0)
                sends += self._roster.send_announced(server, self._leaving[-1])
            self._sent = Pending(sends)
            self._announced, self._lengths = self._roster.announcements(self._roster.servers)

    @property
    def arriving(self) -> Pending:
        return self._announced

    def receive(self) -> None:
        with self.phase("exchange"):
            self._sent.wait()
            self._announced.wait()
            sums = self._roster.receive_announced(self._roster.servers, self._lengths, self.sizes.sum_nbytes)
        self.channel.count(sent=0, received=sum(message.nbytes + LENGTH_BYTES for message in sums))
        with self.phase("decode"):
            self._code.unpack_sums([message.to(self._device) for message in sums])


class Layout(Sizes, Protocol):
    """A bucket's layout as a server sees it."""

    @property
    def varies(self) -> bool: ...
    def add(self, shard: int, label: tuple[int, int], messages: Sequence[Tensor]) -> Tensor:
        """Adds up all workers' messages of a shard and gives the message of the sum."""


@dataclass
class Served:
    """What a server has done."""

    num_buckets: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class Server:
    """Carries out orders until it is told to stop."""

    def __init__(self, roster: Roster, read_layout: Callable[[bytes], Layout], patience: dt.timedelta) -> None:
        self.served = Served()
        self.where = "waiting for the first order"
        self._roster = roster
        self._shard = roster.servers.index(roster.rank)
        self._read_layout = read_layout
        self._patience = patience
        self._layouts: dict[int, Layout] = {}
        self._leaving: Pending | None = None

    def run(self) -> Served:
        for order in self._orders():
            self._carry_out(order, self._layouts[order.layout])
        self._flush()
        return self.served

    def _orders(self) -> Iterator[Order]:
        """Waits for orders for as long as workers may be busy with other things: loading, evaluating, saving."""
        while True:
            words = torch.zeros(Order.NUM_WORDS, dtype=torch.int64)
            work = self._roster.receive(0, words)
            assert work is not None  # None is for ranks outside the group
            work.wait(self._patience)
            order = Order(*words.tolist())
            if order.layout == STOP:
                return
            self.where = f"step {order.step}, bucket {order.bucket}"
            self.served.bytes_received += words.nbytes + order.description_bytes
            if order.description_bytes:
                description = torch.zeros(order.description_bytes, dtype=torch.uint8)
                Pending([self._roster.receive(0, description)]).wait()
                self._layouts[order.layout] = self._read_layout(bytes(description.tolist()))
            yield order

    def _carry_out(self, order: Order, layout: Layout) -> None:
        workers = self._roster.workers
        messages = self._receive(layout)
        target = layout.add(self._shard, (order.step, order.bucket), messages)
        self._flush()
        send = self._roster.send_announced if layout.varies else lambda *message: [self._roster.send(*message)]
        self._leaving = Pending([work for worker in workers for work in send(worker, target)])
        announced = LENGTH_BYTES * layout.varies
        self.served.num_buckets += 1
        self.served.bytes_received += sum(message.nbytes + announced for message in messages)
        self.served.bytes_sent += len(workers) * (target.nbytes + announced)

    def _receive(self, layout: Layout) -> Sequence[Tensor]:
        """Every worker's message."""
        workers = self._roster.workers
        if layout.varies:
            announced, lengths = self._roster.announcements(workers)
            announced.wait()
            return self._roster.receive_announced(workers, lengths, layout.nbytes)
        messages = torch.empty(len(workers), layout.nbytes, dtype=torch.uint8)
        Pending([*map(self._roster.receive, workers, messages)]).wait()
        return list(messages)

    def _flush(self) -> None:
        """Waits until the sums of the bucket before are with the workers."""
        if self._leaving is not None:
            self._leaving.wait()
            self._leaving = None
