"""Are the replicas still equal? A checksum of every parameter, compared across ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from terngrad.errors import ReplicaDivergence
from terngrad.exchange import Channel

_NAMED = 5  # parameters that an error names


def checksums(parameters: Sequence[Tensor]) -> Tensor:
    """CRC-32 of each parameter's bytes, as int64."""

    def checksum(parameter: Tensor) -> int:
        content: Any = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return zlib.crc32(content)

    return torch.tensor([checksum(p) if p.numel() else 0 for p in parameters], dtype=torch.int64)


def verify(
    channel: Channel, names: Sequence[str], parameters: Sequence[Tensor], step: int, absent: bool, device: torch.device
) -> None:
    """Raises ReplicaDivergence on every rank if any two ranks' parameters differ; `absent` ranks are not compared."""
    mine = torch.cat([torch.tensor([int(absent)]), checksums(parameters)]).to(device)
    received = torch.empty(channel.world_size, mine.nbytes, dtype=torch.uint8, device=device)
    received[channel.rank] = mine.view(torch.uint8)
    channel.all_gather(received).wait()
    everyone = received.view(torch.int64).cpu()
    present = [rank for rank in range(channel.world_size) if not everyone[rank, 0]]
    differing = {}
    for index, name in enumerate(names):
        ranks_by_sum: dict[int, list[int]] = {}
        for rank in present:
            ranks_by_sum.setdefault(int(everyone[rank, index + 1]), []).append(rank)
        if len(ranks_by_sum) > 1:
            differing[name] = " / ".join(str(ranks) for ranks in ranks_by_sum.values())
    if differing:
        shown = "; ".join(f"{name}: ranks {groups}" for name, groups in list(differing.items())[:_NAMED])
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        raise ReplicaDivergence(
            f"rank {channel.rank}, step {step}: {len(differing)} of {len(names)} parameters differ between ranks "
            f"({shown}{more}). Something changed them outside the averaged gradients; restart from a checkpoint"
        )
