"""Parameter servers: ranks that do not train but add up the codes of those that do.

The setting of the TernGrad paper ("parameter localization"): every worker keeps its own replica, pushes ternary codes,
and pulls their sum. Results are those of the other exchanges, bit for bit.
"""

from __future__ import annotations

import datetime as dt
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from terngrad.codecs import Frame, read_description
from terngrad.ddp.stage import naming
from terngrad.errors import ConfigurationError
from terngrad.exchange import Roster, Served, Server, ServerExchange, timeout_of
from terngrad.methods import add_messages

PATIENCE_S = 3600.0


class Attached(Protocol):
    """What is used of a handle."""

    @property
    def attached(self) -> bool: ...


class _Layout:
    """What a server knows of a bucket."""

    def __init__(self, description: bytes) -> None:
        self.description = description
        self._frame = read_description(description)
        self.num_shards, self.nbytes, self.sum_nbytes = (
            self._frame.num_shards,
            self._frame.nbytes,
            self._frame.sum_nbytes,
        )
        self.varies = not isinstance(self._frame, Frame)

    def add(self, shard: int, label: tuple[int, int], messages: Sequence[Tensor]) -> Tensor:
        return add_messages(self._frame, label, shard, messages)


class ParameterServers:
    """Divides the ranks into workers and, at the end, `num_servers` servers. Make it on all ranks alike.

    Between two steps a server waits `patience_s` for the next: for as long as workers may load, evaluate or save. That
    is also when it notices that worker 0's host fell silent there; that a process ended it notices at once, and in a
    step the process group's timeout holds.

    servers = terngrad.ParameterServers(1)
    if servers.is_server:
        servers.serve()
    else:
        model = DistributedDataParallel(net, process_group=servers.workers)
        handle = terngrad.attach(model, "terngrad", exchange=servers)
        ...
        servers.close()
    """

    def __init__(self, num_servers: int, patience_s: float = PATIENCE_S) -> None:
        world_size = dist.get_world_size()
        if not 1 <= num_servers < world_size:
            raise ConfigurationError(
                f"ParameterServers({num_servers}): of {world_size} ranks at least one must be a server and one a "
                f"worker; pass 1 to {world_size - 1}, or start more ranks"
            )
        timeout = timeout_of(dist.distributed_c10d._get_default_group())
        with naming(lambda: f"rank {dist.get_rank()}, ParameterServers"):
            workers = dist.new_group(range(world_size - num_servers), timeout=timeout)
            # Servers need no accelerator, so what goes to them goes by the CPU.
            self._roster = Roster(dist.new_group(timeout=timeout, backend="gloo"), num_servers)
        self._workers: dist.ProcessGroup | None = None if self.is_server else workers
        self._exchange = ServerExchange(self._roster)
        self._patience = dt.timedelta(seconds=patience_s)
        self._closed = False
        self._user: weakref.ref[Attached] | None = None

    @property
    def num_servers(self) -> int:
        """How many of the ranks are servers."""
        return self._roster.num_servers

    @property
    def is_server(self) -> bool:
        """Whether this rank is one of them."""
        return self._roster.rank in self._roster.servers

    @property
    def workers(self) -> dist.ProcessGroup:
        """The process group for DDP, on the workers."""
        if self._workers is None:
            raise ConfigurationError(
                f"ParameterServers.workers: rank {dist.get_rank()} is a server and trains no model; call serve() there"
            )
        return self._workers

    def claim(self, handle: Attached, group: dist.ProcessGroup) -> ServerExchange:
        """The exchange, for the one handle that may use it at a time; its model must be spread over all workers."""
        user = self._user() if self._user is not None else None
        if user is not None and user.attached:
            raise ConfigurationError("attach: these servers serve a model already; detach its handle first")
        mine, needed = dist.get_process_group_ranks(group), dist.get_process_group_ranks(self.workers)
        if mine != needed:
            raise ConfigurationError(
                f"attach: the model is spread over ranks {mine}, its servers' workers are {needed}; pass "
                "process_group=servers.workers to DistributedDataParallel"
            )
        self._user = weakref.ref(handle)
        return self._exchange

    def serve(self) -> Served:
        """On a server: adds up what the workers send until they close, and gives the number of buckets and bytes."""
        if not self.is_server:
            raise ConfigurationError(f"ParameterServers.serve: rank {dist.get_rank()} is a worker; call it on servers")
        server = Server(self._roster, _Layout, self._patience)
        with naming(lambda: f"rank {dist.get_rank()}, server, {server.where}"):
            return server.run()

    def close(self) -> None:
        """On all workers, after the last step: lets the servers go."""
        if not self.is_server and not self._closed:
            self._closed = True
            with naming(lambda: f"rank {dist.get_rank()}, ParameterServers.close"):
                self._exchange.stop()
