"""Makes the golden payloads: `python tests/golden/golden.py` rewrites tests/golden/*.json.

A changed byte means that old and new versions cannot talk to each other: raise `VERSION` in codecs/header.py with it.

Each file holds `inputs` (method, sizes, dtype, seed, step, bucket, and every rank's gradient in 64ths) and `outputs`:
the scalers message of each rank, each rank's messages by shard, the messages of the sums where there are any, and the
average, all as hex.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from terngrad.codecs import DENSE_TYPES, Segment
from terngrad.methods import AnyBucket, Coder, ParameterInfo, from_spec, open_bucket

DIRECTORY = Path(__file__).parent


class Inputs(TypedDict):
    method: str
    dtype: str
    sizes: list[int]
    seed: int
    step: int
    bucket: int
    exchange: str  # "all-gather" or "two-shot"
    gradients_in_64ths: list[str]  # numbers separated by spaces, one text for each rank


class Outputs(TypedDict):
    scalers: list[str]
    messages: list[list[str]]
    sums: list[str]
    average: str


class Golden(TypedDict):
    inputs: Inputs
    outputs: Outputs


def inputs_of(
    method: str, exchange: str, world_size: int, dtype: str = "fp32", size: int = 170, every: int = 1
) -> Inputs:
    """Two parameters, 170 and 5 elements or so; with dense_below=8 the second is dense. All zero but `every` n-th."""
    numbers = [
        [((37 * i + 11 * rank) % 129 - 64) * (i % every == 0) for i in range(size + 5)] for rank in range(world_size)
    ]
    return Inputs(
        method=method, dtype=dtype, sizes=[size, 5], seed=20171, step=3, bucket=2, exchange=exchange,
        gradients_in_64ths=[" ".join(map(str, own)) for own in numbers],
    )  # fmt: skip


FIXED = {
    "two_bit": inputs_of("terngrad:codec=two-bit,dense_below=8", "all-gather", 2),
    "base3": inputs_of("terngrad:dense_below=8", "all-gather", 2),
    "base3_own_scalers_in_blocks": inputs_of("terngrad:block=64,shared=false,dense_below=8", "all-gather", 2, "fp16"),
    "levels_of_2": inputs_of("terngrad:dense_below=8", "two-shot", 2),
    "levels_of_3": inputs_of("terngrad:codec=two-bit,block=64,dense_below=8", "two-shot", 3, "bf16"),
    "dense_fp32": inputs_of("fp32", "all-gather", 1),
    "dense_fp16": inputs_of("fp16", "all-gather", 2),
    "dense_bf16": inputs_of("bf16", "two-shot", 2),
}
VARYING = {
    "entropy": inputs_of("terngrad:codec=entropy,dense_below=8", "all-gather", 2, size=1500, every=7),
    "entropy_sums_of_3": inputs_of("terngrad:codec=entropy,dense_below=8", "two-shot", 3, size=1500, every=7),
    "sparse": inputs_of("sdagc:compensation=none,values=bf16,threshold=1.5,dense_below=8", "all-gather", 2),
    "sparse_signs": inputs_of("sdagc:compensation=none,threshold=1.5,values=sign", "two-shot", 2),
    "sparse_whole": inputs_of("sdagc:compensation=none,threshold=0,values=fp16", "all-gather", 2),
}
CASES = {**FIXED, **VARYING}


def gradients_of(inputs: Inputs) -> list[list[float]]:
    return [[int(number) / 64 for number in own.split()] for own in inputs["gradients_in_64ths"]]


def open_buckets(inputs: Inputs) -> list[AnyBucket]:
    """One bucket for each rank, holding its gradient."""
    sizes, dtype = inputs["sizes"], DENSE_TYPES[inputs["dtype"]]
    segments = tuple(Segment(i, sum(sizes[:i]), size) for i, size in enumerate(sizes))
    parameters = [ParameterInfo(f"p{i}", size, False) for i, size in enumerate(sizes)]
    world_size = len(inputs["gradients_in_64ths"])
    num_shards = world_size if inputs["exchange"] == "two-shot" else 1
    buckets: list[AnyBucket] = []
    for rank, gradient in enumerate(gradients_of(inputs)):
        coder = Coder(from_spec(inputs["method"]), parameters, rank, world_size, inputs["seed"])
        frame = coder.frame(segments, dtype, coder.is_dense_step(inputs["step"], 0), num_shards)
        buffer = torch.tensor(gradient).to(dtype)
        buckets.append(open_bucket(coder, frame, buffer, inputs["bucket"], inputs["step"]))
    return buckets


def hex_of(tensor: Tensor) -> str:
    return bytes(tensor.contiguous().view(torch.uint8).tolist()).hex()


def message_of(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def share_scalers(buckets: list[AnyBucket]) -> list[Tensor]:
    scaled = [bucket.scaled for bucket in buckets if bucket.scaled is not None]
    scalers = torch.zeros(len(scaled), scaled[0].frame.scalers_nbytes if scaled else 0, dtype=torch.uint8)
    for bucket, message in zip(scaled, scalers, strict=True):
        bucket.scalers_message(message)
    for bucket in scaled:
        bucket.take_scalers(scalers)
    return list(scalers)


def messages_of(bucket: AnyBucket) -> list[Tensor]:
    if bucket.varies:
        return bucket.pack()
    messages = torch.zeros(bucket.frame.num_shards, bucket.frame.nbytes, dtype=torch.uint8)
    bucket.encode(messages)
    return list(messages)


def sum_of(bucket: AnyBucket, messages: list[Tensor]) -> Tensor:
    if bucket.varies:
        return bucket.add(messages)
    target = torch.zeros(bucket.frame.sum_nbytes, dtype=torch.uint8)
    bucket.sum_shard(torch.stack(messages), target)
    return target


def read(bucket: AnyBucket, messages: list[Tensor], sums: list[Tensor]) -> None:
    """Leaves the average in the bucket."""
    if bucket.varies and sums:
        bucket.unpack_sums(sums)
    elif bucket.varies:
        bucket.unpack(messages)
    elif sums:
        bucket.decode_sums(torch.stack(sums))
    else:
        bucket.decode(torch.stack(messages))


def encode(inputs: Inputs) -> Outputs:
    """The bytes that the current code makes of `inputs`."""
    buckets = open_buckets(inputs)
    scalers = share_scalers(buckets)
    messages = [messages_of(bucket) for bucket in buckets]
    two_shot = inputs["exchange"] == "two-shot"
    sums = [sum_of(bucket, [own[i] for own in messages]) for i, bucket in enumerate(buckets)] if two_shot else []
    read(buckets[0], [own[0] for own in messages], sums)
    return Outputs(
        scalers=[hex_of(row) for row in scalers],
        messages=[[hex_of(row) for row in own] for own in messages],
        sums=[hex_of(row) for row in sums],
        average=hex_of(buckets[0].buffer),
    )


def decode(golden: Golden) -> str:
    """The average that rank 0 reads from the stored bytes."""
    inputs, outputs = golden["inputs"], golden["outputs"]
    bucket = open_buckets(inputs)[0]
    if bucket.scaled is not None:
        bucket.scaled.take_scalers(torch.stack([message_of(row) for row in outputs["scalers"]]))
    if bucket.varies and bucket.scaled is None:
        bucket.pack()  # which takes the gradient out of the bucket
    read(bucket, [message_of(own[0]) for own in outputs["messages"]], [message_of(row) for row in outputs["sums"]])
    return hex_of(bucket.buffer)


def load(name: str) -> Golden:
    golden: Golden = json.loads((DIRECTORY / f"{name}.json").read_text())
    return golden


if __name__ == "__main__":
    for case, given in CASES.items():
        text = json.dumps(Golden(inputs=given, outputs=encode(given)), indent=1)
        (DIRECTORY / f"{case}.json").write_text(text + "\n")
        print(f"{case}.json: {len(text)} characters")
