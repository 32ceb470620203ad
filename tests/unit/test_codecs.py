"""Sizes are what is written, shards cover everything once, and a message that is not what was announced is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import Ranks, gradients_of, segments_of
from torch import Tensor

from terngrad.codecs import CODES, HEADER_BYTES, Body, DenseType, Frame, Header, Segment
from terngrad.errors import WireError
from terngrad.kernels import Code, kernels_for, level_rows, packed_bytes
from terngrad.methods import BucketCode, Dense, TernGrad

SIZES = (161, 0, 7, 1, 400, 64)
NAMES = {Code.TWO_BIT: "two-bit", Code.BASE3: "base3"}  # of messages with a fixed size


def frame_of(
    segments: tuple[Segment, ...], is_dense: list[bool], num_shards: int, code: Code, block: int, dtype: torch.dtype
) -> Frame:
    return Frame(
        [s for s, dense in zip(segments, is_dense, strict=True) if not dense],
        [s for s, dense in zip(segments, is_dense, strict=True) if dense],
        codec=NAMES[code], block=block, dense_type=dtype, num_shards=num_shards, world_size=num_shards,
    )  # fmt: skip


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    parts = draw(st.lists(st.tuples(st.integers(1, 1000), st.booleans(), st.integers(0, 5)), min_size=1, max_size=12))
    segments: list[Segment] = []
    source = 0
    for index, (numel, _, gap) in enumerate(parts):
        segments.append(Segment(index, source + gap, numel))
        source += gap + numel
    return frame_of(
        tuple(segments), [dense for _, dense, _ in parts], draw(st.integers(1, 9)), draw(st.sampled_from(Code)),
        draw(st.sampled_from([0, 8, 64])), draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
    )  # fmt: skip


# Shards


@given(frames())
def test_shards_cover_every_element_exactly_once(frame: Frame) -> None:
    for segments, spans in (
        (frame.ternary, [(r.source, r.length) for s in frame.shards for r in s.runs.rows]),
        (frame.dense, [(d.source, d.numel) for s in frame.shards for d in s.dense]),
    ):
        covered = [i for first, count in spans for i in range(first, first + count)]
        assert sorted(covered) == [i for s in segments for i in range(s.source, s.source + s.numel)]


@given(frames())
def test_a_run_knows_its_parameter_its_offset_and_its_scaler(frame: Frame) -> None:
    for run, position in zip(frame.runs.rows, frame.segments_of(frame.runs).tolist(), strict=True):
        segment = frame.ternary[position]
        assert run.source - run.offset == segment.source
        assert run.offset + run.length <= segment.numel
        assert run.offset % (8 * frame.code.rows) == 0
        assert run.unit == frame.units[position].start


@given(frames())
def test_every_scaler_serves_its_block_of_one_segment(frame: Frame) -> None:
    for segment, units in zip(frame.ternary, frame.units, strict=True):
        spans = frame.spans[units].tolist()
        assert sum(length for _, length in spans) == segment.numel
        assert spans[0][0] == segment.source
        for first, length in spans:
            assert frame.block == 0 or (first - segment.source) % frame.block == 0 < length <= frame.block


@given(frames())
def test_shards_differ_by_at_most_a_group_and_a_dense_value(frame: Frame) -> None:
    code_bytes = [shard.dense_at for shard in frame.shards]
    dense_counts = [shard.num_dense for shard in frame.shards]
    assert max(code_bytes) - min(code_bytes) <= 32
    assert max(dense_counts) - min(dense_counts) <= 1


# Sizes


@given(frames())
def test_nbytes_is_what_the_parts_of_the_largest_message_take_up(frame: Frame) -> None:
    """Parts lie one behind the other without gap or overlap; the whole is rounded up to 16 bytes."""
    for size, starts, ends, rows in (
        (frame.nbytes, [[r.packed for r in s.runs.rows] for s in frame.shards], "dense_at", frame.code.rows),
        (frame.sum_nbytes, [[r.levels for r in s.runs.rows] for s in frame.shards], "sum_dense_at",
         level_rows(frame.world_size)),
    ):  # fmt: skip
        needed = []
        for shard, begins in zip(frame.shards, starts, strict=True):
            at = HEADER_BYTES
            for begin, run in zip(begins, shard.runs.rows, strict=True):
                assert begin == at
                at += packed_bytes(run.length, rows)
            assert getattr(shard, ends) == at
            needed.append(at + shard.num_dense * frame.dense_dtype.itemsize)
        assert size % 16 == 0 <= size - max(needed) < 16


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("codec", NAMES.values())
def test_messages_fill_the_bytes_that_nbytes_promises_and_no_others(codec: str, world_size: int) -> None:
    """Written twice over different garbage; what both agree on was written: all but the rounding to 16 bytes."""
    ranks = Ranks.start(TernGrad(codec=codec, dense_below=100), SIZES, world_size)
    codes, _ = ranks.encode(gradients_of(ranks), world_size, 0)
    frame = codes[0].frame
    garbage = [torch.full((world_size, frame.nbytes), value, dtype=torch.uint8) for value in (0, 255)]
    for messages in garbage:
        codes[0].encode(messages)
    written = garbage[0] == garbage[1]
    for row, shard in zip(written, frame.shards, strict=True):
        end = shard.dense_at + shard.num_dense * 4
        assert row[:end].all()
        assert not row[end:].any()


def test_scalers_take_a_header_and_four_bytes_each() -> None:
    ranks = Ranks.start(TernGrad(block=64, dense_below=8), SIZES, 1)
    frame = ranks.frame(torch.float32, 1)
    assert frame.num_units == 3 + 7 + 1
    assert frame.scalers_nbytes == HEADER_BYTES + 4 * 11
    code = BucketCode(ranks.coders[0], frame, torch.randn(sum(SIZES)), 0, 0)
    garbage = [torch.full((frame.scalers_nbytes,), value, dtype=torch.uint8) for value in (0, 255)]
    for message in garbage:
        code.scalers_message(message)
    assert torch.equal(*garbage)


def test_a_bucket_without_ternary_segments_has_no_scalers() -> None:
    assert Ranks.start(Dense(), SIZES, 2).frame(torch.float32, 2).scalers_nbytes == 0


@pytest.mark.parametrize(("codec", "bits"), [("base3", 1.61), ("two-bit", 2.01)])
def test_big_segments_take_few_bits_a_value(codec: str, bits: float) -> None:
    numel = 10**6
    frame = frame_of(segments_of([numel]), [False], 1, CODES[codec], 0, torch.float32)
    assert frame.nbytes * 8 / numel <= bits


@given(st.integers(1, 10**9), st.sampled_from(Code))
def test_packed_bytes_hold_every_value_in_as_few_groups_as_possible(numel: int, code: Code) -> None:
    groups, rest = divmod(packed_bytes(numel, code.rows), 32)
    assert rest == 0
    assert (groups - 1) * code.rows * 8 < numel <= groups * code.rows * 8


@pytest.mark.parametrize(("world_size", "bits"), [(1, 1.61), (2, 2.47), (3, 2.92), (4, 3.21), (8, 4.58), (64, 8.01)])
def test_levels_of_a_sum_take_little_more_than_their_entropy_bound(world_size: int, bits: float) -> None:
    """log2(2N+1) bits rounded up to whole digits of a 32-bit word."""
    assert np.log2(2 * world_size + 1) <= 8 * packed_bytes(10**6, level_rows(world_size)) / 10**6 <= bits


# Headers


def test_a_header_is_52_bytes_and_differs_in_every_field() -> None:
    base = Header(Body.BASE3, DenseType.FP16, 1, 2, 3, 4, 5, 6, 7)
    others = [
        replace(base, body=Body.TWO_BIT),
        replace(base, dense_type=DenseType.FP32),
        *(Header(Body.BASE3, DenseType.FP16, *(v + (i == k) for k, v in enumerate(range(1, 8)))) for i in range(7)),
    ]
    assert len({header.pack() for header in (base, *others)}) == 10
    assert all(len(header.pack()) == HEADER_BYTES == 52 for header in (base, *others))


def check_against(announced: Header, sent: Header) -> None:
    message = torch.zeros(announced.num_bytes, dtype=torch.uint8)
    sent.write(message)
    announced.check(message)


def test_the_error_of_a_header_names_the_sender_the_bucket_the_step_and_what_differs() -> None:
    announced = Header(Body.BASE3, DenseType.NONE, 1, 0, 3, 9, 50, 0, 96)
    check_against(announced, announced)
    later = Header(Body.BASE3, DenseType.NONE, 1, 0, 3, 10, 49, 0, 96)
    with pytest.raises(WireError, match=r"rank 1, step 9, bucket 3: step is 10, need 9, num_coded is 49, need 50"):
        check_against(announced, later)
    with pytest.raises(WireError, match=r"rank 1, step 9, bucket 3: 95 bytes long, need 96"):
        announced.check(torch.zeros(95, dtype=torch.uint8))
    with pytest.raises(WireError, match=r"no terngrad message"):
        announced.check(torch.zeros(96, dtype=torch.uint8))


# Refusals, through the four functions that read messages

Reader = Callable[[Tensor], None]


def reader_of(function: str, method: TernGrad | Dense, world_size: int = 2) -> tuple[Reader, Tensor, BucketCode]:
    """A function that reads messages, with valid ones for it and the bucket that it writes to."""
    ranks = Ranks.start(method, SIZES, world_size)
    codes, messages = ranks.encode(gradients_of(ranks), 1 if function == "decode" else world_size, 5)
    first = codes[0]
    if function == "take_scalers":
        scalers = torch.zeros(world_size, first.frame.scalers_nbytes, dtype=torch.uint8)
        for code, message in zip(codes, scalers, strict=True):
            code.scalers_message(message)
        return first.take_scalers, scalers, first
    if function == "decode":
        return first.decode, messages[:, 0].contiguous(), first
    if function == "sum_shard":
        target = torch.zeros(first.frame.sum_nbytes, dtype=torch.uint8)
        return lambda shards: first.sum_shard(shards, target), messages[:, 0].contiguous(), first
    return first.decode_sums, ranks.sum_shards(codes, messages), first


READERS = ["take_scalers", "decode", "sum_shard", "decode_sums"]


@pytest.mark.parametrize("function", READERS)
def test_every_flipped_bit_of_a_header_is_refused_and_nothing_is_written(function: str) -> None:
    read, messages, bucket = reader_of(function, TernGrad(dense_below=100))
    before = bucket.buffer.clone()
    for row in range(len(messages)):
        for bit in range(8 * HEADER_BYTES):
            messages[row, bit // 8] ^= 1 << bit % 8
            with pytest.raises(WireError, match=f"rank {row}, step 5, bucket 4"):
                read(messages)
            messages[row, bit // 8] ^= 1 << bit % 8
    assert torch.equal(bucket.buffer, before)
    read(messages)


@pytest.mark.parametrize("function", READERS)
def test_every_truncation_of_a_message_is_refused(function: str) -> None:
    read, messages, _ = reader_of(function, TernGrad(dense_below=100))
    num_bytes = messages.shape[1]
    for length in range(num_bytes):
        with pytest.raises(WireError, match=f"{length} bytes long, need {num_bytes}"):
            read(messages[:, :length].contiguous())
    with pytest.raises(WireError, match=f"{num_bytes + 1} bytes long"):
        read(torch.nn.functional.pad(messages, (0, 1)))
    read(messages)


@pytest.mark.parametrize("function", ["decode", "sum_shard", "decode_sums"])
def test_dense_messages_are_refused_like_ternary_ones(function: str) -> None:
    read, messages, _ = reader_of(function, Dense("fp16"))
    for byte in range(HEADER_BYTES):
        messages[1, byte] ^= 255
        with pytest.raises(WireError, match="rank 1"):
            read(messages)
        messages[1, byte] ^= 255
    with pytest.raises(WireError, match="bytes long"):
        read(messages[:, :-2])
    read(messages)


@pytest.mark.parametrize("function", READERS)
def test_messages_in_the_wrong_order_are_refused(function: str) -> None:
    read, messages, _ = reader_of(function, TernGrad(dense_below=100))
    with pytest.raises(WireError, match="sender is 1, need 0"):
        read(messages.flip(0))


@pytest.mark.parametrize("codec", ["base3", "entropy"])
def test_a_part_in_the_place_of_another_is_refused(codec: str) -> None:
    ranks = Ranks.start(TernGrad(dense_below=100, codec=codec), SIZES, 2)
    codes = ranks.open(gradients_of(ranks), 3, 5)
    first, second = ([ranks.part(code, shard) for code in codes] for shard in (1, 2))
    with pytest.raises(WireError, match="shard is 1, need 2"):
        ranks.read_part(codes, first, 2)
    ranks.read_part(codes, second, 2)


def bad_bytes(codec: str) -> list[int]:
    if codec == "base3":
        return list(range(243, 256))
    return [0b11 << shift | other for shift in (0, 2, 4, 6) for other in (0, 0b01010101 & ~(0b11 << shift))]


@pytest.mark.parametrize("function", ["decode", "sum_shard"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("codec", NAMES.values())
def test_codes_that_no_encoder_writes_are_refused_at_every_byte(
    codec: str, shared: bool, function: str, each_backend: str
) -> None:
    read, messages, bucket = reader_of(function, TernGrad(codec=codec, shared=shared, dense_below=100))
    end = bucket.frame.shards[0].dense_at
    values = bad_bytes(codec)
    for i, byte in enumerate(range(HEADER_BYTES, end)):
        clean = int(messages[i % 2, byte])
        messages[i % 2, byte] = values[i % len(values)]
        with pytest.raises(WireError, match=f"rank {i % 2}, step 5, bucket 4: holds codes that no encoder writes"):
            read(messages)
        messages[i % 2, byte] = clean
    assert end - HEADER_BYTES > 2 * len(values)
    read(messages)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_words_that_are_no_levels_are_refused_at_every_word(world_size: int, each_backend: str) -> None:
    read, messages, bucket = reader_of("decode_sums", TernGrad(dense_below=100), world_size)
    first_bad = (2 * world_size + 1) ** level_rows(world_size)
    for shard, message in enumerate(messages):
        for at in range(HEADER_BYTES, bucket.frame.shards[shard].sum_dense_at, 4):
            clean = message[at : at + 4].clone()
            message[at : at + 4] = torch.tensor(list(first_bad.to_bytes(4, "little")), dtype=torch.uint8)
            with pytest.raises(WireError, match=f"rank {shard}, .* codes that no encoder writes"):
                read(messages)
            message[at : at + 4] = clean
    read(messages)


# Inverses


@given(st.lists(st.integers(-1, 1), max_size=500), st.sampled_from(Code))
def test_decoding_inverts_encoding(values: list[int], code: Code) -> None:
    """A value of -1, 0 or 1 with scaler 1 is sent as it is, whatever the draw."""
    buffer = torch.tensor(values, dtype=torch.float32)
    frame = frame_of(segments_of([len(values)]), [False], 1, code, 0, torch.float32)
    packed, found, one = torch.zeros(frame.nbytes, dtype=torch.uint8), torch.empty_like(buffer), torch.ones(1)
    kernels, keys = kernels_for(buffer.device), np.zeros((len(frame.runs), 2), dtype=np.uint32)
    kernels.ternarize(buffer, frame.runs, keys, one, one * 2.0**-24, code, packed)
    assert kernels.mean_shared(found, frame.runs, [packed], one, code)
    assert torch.equal(found, buffer)
