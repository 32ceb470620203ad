"""Palettes: the few values of a segment, and sums of signs written with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_names import named
from ranks import Ranks, gradients_of

from terngrad.codecs.sparse_values import SIGN_SUMS, most_bytes, pack_values, unpack_values
from terngrad.kernels import FloatArray, Int64Array, backends, reference
from terngrad.methods import SDAGC, SparseBucket, open_bucket

CPU = torch.device("cpu")
NATIVE = [name for name in backends() if name.startswith("native:")]


def values_of(kind: str, number: int, seed: int = 0) -> FloatArray:
    random = np.random.default_rng(seed)
    found = {
        "one": np.full(number, 0.25),
        "few": random.integers(-4, 5, number) * 0.1,
        "odd": random.choice([0.5, -0.5, math.nan, math.inf, 0.0, -0.0, 1e-45], number),
        "thousands": random.integers(0, 3000, number) * 0.3,
        "different": random.standard_normal(number),
        "too many twice": np.repeat(random.permutation(number), 2)[:number],
    }
    return found[kind].astype(np.float32)


KINDS = ("one", "few", "odd", "thousands", "different", "too many twice")
COUNTS = ([], [0], [1], [2], [3, 1, 0, 2], [40, 700, 1, 20_000], [140_000])


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NATIVE)
def test_native_equals_reference(name: str, kind: str, counts: list[int]) -> None:
    values, lengths = values_of(kind, sum(counts)), np.array(counts, dtype=np.int64)
    for mine, theirs in zip(named(name).palettes(values, lengths), reference.palettes(values, lengths), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", backends())
def test_the_most_frequent_value_comes_first(name: str) -> None:
    values = np.array([7, 1, 1, 2, 2, 1, 5, 6], np.float32)
    found = named(name).palettes(values, np.array([1, 5, 2]))
    assert found.sizes.tolist() == [0, 2, 0]  # where none occurs twice there is nothing to save
    assert found.table.tolist() == [7, 1, 2, 5, 6]
    assert found.ranks.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize("counts", [[3], [5], [-1, 5], [2, 1]])
def test_counts_that_do_not_fit_are_refused(name: str, counts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"entries|values"):
        named(name).palettes(np.zeros(4, np.float32), np.array(counts))


def packed(values: FloatArray, counts: Int64Array) -> bytes:
    return pack_values(SIGN_SUMS, values, counts)


@pytest.mark.parametrize("counts", [c for c in COUNTS if 0 not in c], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_signs_come_back_bit_for_bit_in_bounded_space(kind: str, counts: list[int]) -> None:
    values, lengths = values_of(kind, sum(counts)), np.array(counts, dtype=np.int64)
    data = packed(values, lengths)
    assert unpack_values(SIGN_SUMS, data, lengths).tobytes() == values.tobytes()
    assert len(data) <= most_bytes(len(values), len(counts))


def test_what_was_cut_or_changed_is_refused_or_has_as_many_values() -> None:
    counts = np.array([50, 1, 30])
    data = packed(values_of("few", 81), counts)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"bytes|ranks|rank"):
            unpack_values(SIGN_SUMS, data[:length], counts)
    for at in range(len(data)):
        for change in (0x01, 0x55, 0xFF):
            changed = bytearray(data)
            changed[at] ^= change
            try:
                found = unpack_values(SIGN_SUMS, bytes(changed), counts)
            except ValueError:
                continue
            assert len(found) == 81


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_sum_of_signs_is_less_than_half_of_one_in_fp32(num_ranks: int) -> None:
    """By construction for these seeds; and as long as is predicted, within a fifth."""
    ranks = Ranks.start(SDAGC(compensation="none", values="sign"), (200_000, 3000), num_ranks)
    gradients = gradients_of(ranks)
    frame = ranks.coders[0].frame(tuple(ranks.segments), torch.float32, False, num_ranks)
    codes = [open_bucket(c, frame, g, 0, 0) for c, g in zip(ranks.coders, gradients, strict=True)]
    messages = [code.pack()[0] for code in codes if isinstance(code, SparseBucket)]
    first = codes[0]
    assert isinstance(first, SparseBucket)
    total = first.add(messages)
    number = int.from_bytes(bytes(total[52:56].tolist()), "little")
    gaps = int.from_bytes(bytes(total[56:60].tolist()), "little")
    assert total.numel() - 60 - gaps < 2 * number
    assert total.numel() == pytest.approx(frame.expected.sum_nbytes, rel=0.2)
