"""Several ranks in one process: what the exchanges do, as copies between tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from terngrad.codecs import AnyFrame, Frame, Segment
from terngrad.methods import AnyBucket, BucketCode, Coder, Method, ParameterInfo, open_bucket


def segments_of(sizes: Iterable[int]) -> tuple[Segment, ...]:
    """A bucket of parameters 0, 1, ... of these sizes, one behind the other."""
    segments: list[Segment] = []
    source = 0
    for index, size in enumerate(sizes):
        segments.append(Segment(index, source, size))
        source += size
    return tuple(segments)


def new_messages(count: int, num_bytes: int) -> Tensor:
    return torch.zeros(count, num_bytes, dtype=torch.uint8)


@dataclass
class Ranks:
    """The coders of all ranks, and one bucket of theirs."""

    coders: list[Coder]
    segments: tuple[Segment, ...]

    @classmethod
    def start(cls, method: Method, sizes: Sequence[int], world_size: int, seed: int = 1) -> Ranks:
        parameters = [ParameterInfo(f"p{i}", size, i == len(sizes) - 1) for i, size in enumerate(sizes)]
        coders = [Coder(method, parameters, rank, world_size, seed) for rank in range(world_size)]
        return cls(coders, segments_of(sizes))

    @property
    def world_size(self) -> int:
        return len(self.coders)

    def any_frame(self, dtype: torch.dtype, num_shards: int, step: int = 0) -> AnyFrame:
        coder = self.coders[0]
        return coder.frame(self.segments, dtype, coder.is_dense_step(step, 0), num_shards)

    def frame(self, dtype: torch.dtype, num_shards: int, step: int = 0) -> Frame:
        found = self.any_frame(dtype, num_shards, step)
        assert isinstance(found, Frame)
        return found

    def open(self, gradients: Sequence[Tensor], num_shards: int, step: int = 0) -> list[AnyBucket]:
        """Each rank's bucket, scalers exchanged. The gradients are not changed."""
        frame = self.any_frame(gradients[0].dtype, num_shards, step)
        pairs = zip(self.coders, gradients, strict=True)
        codes = [open_bucket(coder, frame, gradient.clone(), 4, step) for coder, gradient in pairs]
        if frame.num_units:
            scalers = new_messages(self.world_size, frame.scalers_nbytes)
            scaled = [code.scaled for code in codes if code.scaled is not None]
            for code, message in zip(scaled, scalers, strict=True):
                code.scalers_message(message)
            for code in scaled:
                code.take_scalers(scalers)
        return codes

    def reduce(self, gradients: Sequence[Tensor], num_shards: int = 1, step: int = 0) -> list[Tensor]:
        """What each rank's buffer holds after a step whose messages vary: one shard, or as many as ranks."""
        codes = self.open(gradients, num_shards, step)
        varying = [code for code in codes if code.varies]
        assert len(varying) == self.world_size
        messages = [code.pack() for code in varying]
        if num_shards == 1:
            for code in varying:
                code.unpack([row[0] for row in messages])
        else:
            sums = [code.add([row[i] for row in messages]) for i, code in enumerate(varying)]
            for code in varying:
                code.unpack_sums(sums)
        for code in varying:
            code.coder.end_step()
        return [code.buffer for code in varying]

    def encode(self, gradients: Sequence[Tensor], num_shards: int, step: int) -> tuple[list[BucketCode], Tensor]:
        """Each rank's bucket, and their messages: (sender, shard, bytes). The gradients are not changed."""
        codes = [code for code in self.open(gradients, num_shards, step) if isinstance(code, BucketCode)]
        frame = self.frame(gradients[0].dtype, num_shards, step)
        messages = torch.zeros(self.world_size, num_shards, frame.nbytes, dtype=torch.uint8)
        for code, own in zip(codes, messages, strict=True):
            code.encode(own)
        return codes, messages

    def all_gather(self, gradients: Sequence[Tensor], step: int = 0) -> list[Tensor]:
        """What each rank's buffer holds after a step."""
        if not isinstance(self.any_frame(gradients[0].dtype, 1, step), Frame):
            return self.reduce(gradients, 1, step)
        codes, messages = self.encode(gradients, 1, step)
        for code in codes:
            code.decode(messages[:, 0])
            code.coder.end_step()
        return [code.buffer for code in codes]

    def in_parts(self, gradients: Sequence[Tensor], num_parts: int, step: int = 0) -> list[Tensor]:
        """As all_gather, but each part is encoded when the one before has been, and decoded one behind."""
        codes = self.open(gradients, num_parts, step)
        under_way: list[list[Tensor]] = []
        for shard in range(num_parts):
            under_way.append([self.part(code, shard) for code in codes])
            codes[0].measure()
            if shard > 0:
                self.read_part(codes, under_way[shard - 1], shard - 1)
        self.read_part(codes, under_way[-1], num_parts - 1)
        for code in codes:
            code.coder.end_step()
        return [code.buffer for code in codes]

    @staticmethod
    def part(code: AnyBucket, shard: int) -> Tensor:
        """A rank's message of one shard."""
        if code.varies:
            return code.pack_shard(shard)
        message = torch.zeros(code.frame.nbytes, dtype=torch.uint8)
        code.encode_shard(shard, message)
        return message

    @staticmethod
    def read_part(codes: Sequence[AnyBucket], messages: Sequence[Tensor], shard: int) -> None:
        """Everyone's messages of one shard, to every rank's buffer."""
        for code in codes:
            if code.varies:
                code.unpack(messages, shard)
            else:
                code.decode(torch.stack([*messages]), shard)

    def two_shot(self, gradients: Sequence[Tensor], step: int = 0) -> list[Tensor]:
        if not isinstance(self.any_frame(gradients[0].dtype, 1, step), Frame):
            return self.reduce(gradients, self.world_size, step)
        codes, messages = self.encode(gradients, self.world_size, step)
        sums = self.sum_shards(codes, messages)
        for code in codes:
            code.decode_sums(sums)
            code.coder.end_step()
        return [code.buffer for code in codes]

    def sum_shards(self, codes: Sequence[BucketCode], messages: Tensor) -> Tensor:
        sums = new_messages(self.world_size, codes[0].frame.sum_nbytes)
        for shard, code in enumerate(codes):
            code.sum_shard(messages[:, shard].contiguous(), sums[shard])
        return sums


def gradients_of(ranks: Ranks, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Different normal gradients on every rank."""
    generator = torch.Generator().manual_seed(seed)
    numel = sum(segment.numel for segment in ranks.segments)
    return [torch.randn(numel, generator=generator).to(dtype) for _ in ranks.coders]
