"""What a handle does together with the other ranks besides averaging: through the lane, as all its collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from terngrad.ddp.lane import Lane
from terngrad.ddp.stage import DeviceOrder, naming
from terngrad.exchange import Channel
from terngrad.perf import Link
from terngrad.perf.wires import measure_link

T = TypeVar("T")


class LaneCrew:
    """All ranks of a channel; every one of them must call the same in the same order."""

    def __init__(self, lane: Lane, channel: Channel, device: torch.device, where: Callable[[], str]) -> None:
        self._lane = lane
        self._channel = channel
        self._device = device
        self._where = where  # the handle is, for errors

    @property
    def rank(self) -> int:
        return self._channel.rank

    @property
    def world_size(self) -> int:
        return self._channel.world_size

    def gather(self, value: object, doing: str = "auto") -> list[Any]:
        """Everyone's value, by rank; `doing` what, for errors."""
        if self.world_size == 1:
            return [value]
        everyone: list[Any] = [None] * self.world_size
        self._call(lambda: dist.all_gather_object(everyone, value, group=self._channel.group), doing)
        return everyone

    def measure_link(self) -> Link:
        """Of all ranks at once."""
        uncounted = Channel(self._channel.group)  # the handle's bytes are those of gradients
        return self._call(lambda: measure_link(uncounted, self._device), "auto, measuring links")

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its mean over all ranks."""
        if not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        num_bytes = 2 * (self.world_size - 1) * flat.nbytes // self.world_size
        self._call(lambda: self._channel.all_reduce(flat, num_bytes).wait(), "averaging velocities")
        flat /= self.world_size
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()

    def _call(self, collective: Callable[[], T], doing: str) -> T:
        on_device = DeviceOrder(self._device)

        def call() -> T:
            with naming(lambda: f"rank {self.rank}, {self._where()}, {doing}"), on_device():
                return collective()

        return self._lane.call(call)
