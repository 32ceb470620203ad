"""What a pilot does together with the other ranks: through the lane, as all collectives of a handle."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from terngrad.ddp.lane import Lane
from terngrad.ddp.stage import DeviceOrder, naming
from terngrad.exchange import Channel
from terngrad.perf import Link
from terngrad.perf.probes import measure_link


class LaneCrew:
    """All ranks of a channel."""

    def __init__(self, lane: Lane, channel: Channel, device: torch.device) -> None:
        self._lane = lane
        self._channel = channel
        self._device = device

    @property
    def rank(self) -> int:
        return self._channel.rank

    @property
    def world_size(self) -> int:
        return self._channel.world_size

    def gather(self, value: object) -> list[Any]:
        """Everyone's value, by rank."""
        everyone: list[Any] = [None] * self.world_size
        on_device = DeviceOrder(self._device)

        def gather() -> None:
            with naming(lambda: f"rank {self.rank}, auto"), on_device():
                dist.all_gather_object(everyone, value, group=self._channel.group)

        self._lane.call(gather)
        return everyone

    def measure_link(self) -> Link:
        on_device = DeviceOrder(self._device)
        uncounted = Channel(self._channel.group)  # the handle's bytes are those of gradients

        def measure() -> Link:
            with naming(lambda: f"rank {self.rank}, auto, measuring links"), on_device():
                return measure_link(uncounted, self._device)

        return self._lane.call(measure)
