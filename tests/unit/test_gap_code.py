"""The gap code: exact, near the entropy, and refusing every stream that no encoder writes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_names import named

from terngrad.kernels import Kernels, backends, kernels_for, reference
from terngrad.kernels.layout import ByteArray, Int64Array

CPU = torch.device("cpu")
DENSITIES = (0.05, 0.01, 0.001, 0.0001)


each_backend = pytest.mark.parametrize("name", backends())


def uniform(limit: int, density: float, seed: int = 0) -> Int64Array:
    return np.flatnonzero(np.random.default_rng(seed).random(limit) < density)


def clustered(limit: int, seed: int = 0) -> Int64Array:
    """Dense stretches in a sparse whole, as when rows of an embedding were used."""
    random = np.random.default_rng(seed)
    rows = np.repeat(random.random(limit // 100) < 0.03, 100)
    return np.flatnonzero(random.random(len(rows)) < np.where(rows, 0.3, 0.0005))


def entropy_bits(limit: int, count: int) -> float:
    """log2 of the number of ways to choose."""
    return (math.lgamma(limit + 1) - math.lgamma(count + 1) - math.lgamma(limit - count + 1)) / math.log(2)


CASES: dict[str, tuple[Int64Array, int]] = {
    "none": (np.zeros(0, np.int64), 1000),
    "none of none": (np.zeros(0, np.int64), 0),
    "the only one": (np.array([0]), 1),
    "the first": (np.array([0]), 10**9),
    "the last": (np.array([10**9 - 1]), 10**9),
    "the last of very many": (np.array([2**48 - 1]), 2**48),
    "first and last": (np.array([0, 2**48 - 1]), 2**48),
    "all": (np.arange(10_000), 10_000),
    "all but the first": (np.arange(1, 10_000), 10_000),
    "all but the middle": (np.delete(np.arange(10_000), 5000), 10_000),
    "every third": (np.arange(0, 30_000, 3), 30_000),
    "all, then none": (np.arange(3000), 10**7),
    "none, then all": (np.arange(10**7 - 3000, 10**7), 10**7),
    "sparse, dense, sparse": (np.concatenate([[7, 10**6], np.arange(5 * 10**6, 5 * 10**6 + 4000), [10**7]]), 2 * 10**7),
    "powers": (2 ** np.arange(48), 2**48),
    "clusters": (clustered(200_000), 200_000),
    **{f"uniform {density:%}": (uniform(300_000, density), 300_000) for density in DENSITIES},
}
each_case = pytest.mark.parametrize("case", CASES)


@each_backend
@each_case
def test_decoding_inverts_encoding(name: str, case: str) -> None:
    positions, limit = CASES[case]
    stream = named(name).gaps_encode(positions, limit)
    decoded = named(name).gaps_decode(stream, len(positions), limit)
    assert stream.dtype == np.uint8
    assert decoded is not None
    assert decoded.dtype == np.int64
    assert np.array_equal(decoded, positions)


@each_backend
@each_case
def test_streams_equal_the_reference(name: str, case: str) -> None:
    positions, limit = CASES[case]
    assert np.array_equal(named(name).gaps_encode(positions, limit), reference.gaps_encode(positions, limit))


@pytest.mark.parametrize("density", DENSITIES)
def test_uniform_positions_cost_at_most_two_per_cent_more_than_their_entropy(density: float) -> None:
    limit = 4_000_000 if density > 0.01 else 40_000_000
    positions = uniform(limit, density)
    stream = kernels_for(CPU).gaps_encode(positions, limit)
    assert 8 * len(stream) < 1.02 * entropy_bits(limit, len(positions))


def test_positions_in_clusters_cost_less_than_as_many_anywhere() -> None:
    """A quarter less: within a cluster gaps are short, and the model knows by the gaps before where it is."""
    positions, limit = CASES["clusters"]
    anywhere = uniform(limit, len(positions) / limit)
    clustered_bits, usual = (8 * len(kernels_for(CPU).gaps_encode(p, limit)) / len(p) for p in (positions, anywhere))
    assert clustered_bits < 0.75 * usual


def test_all_positions_cost_a_bit_each_and_none_nothing() -> None:
    assert len(kernels_for(CPU).gaps_encode(np.arange(80_000), 80_000)) == 10_000
    assert len(kernels_for(CPU).gaps_encode(np.zeros(0, np.int64), 80_000)) == 0


def test_no_gap_costs_more_than_64_bits() -> None:
    for positions, limit in CASES.values():
        assert len(kernels_for(CPU).gaps_encode(positions, limit)) <= 8 * len(positions)
    assert len(kernels_for(CPU).gaps_encode(np.array([0, 1, 2, 2**48 - 1]), 2**48)) <= 4 * 8


def assert_refused_or_canonical(kernels: Kernels, stream: ByteArray, count: int, limit: int) -> bool:
    """What can be decoded at all is the stream of what it decodes to; says whether it was."""
    found, truth = kernels.gaps_decode(stream, count, limit), reference.gaps_decode(stream, count, limit)
    assert (found is None) == (truth is None)
    if found is None or truth is None:
        return False
    assert np.array_equal(found, truth)
    assert len(found) == count
    assert np.array_equal(reference.gaps_encode(found, limit), stream)
    return True


@each_backend
@each_case
def test_a_stream_that_ends_early_or_late_is_refused(name: str, case: str) -> None:
    kernels, (positions, limit) = named(name), CASES[case]
    stream, count = kernels.gaps_encode(positions, limit), len(positions)
    assert kernels.gaps_decode(np.append(stream, np.uint8(0)), count, limit) is None
    for cut in {0, len(stream) // 2, len(stream) - 1} - {-1, len(stream)}:
        assert kernels.gaps_decode(stream[:cut], count, limit) is None
    assert kernels.gaps_decode(stream, limit + 1, limit) is None


@each_backend
def test_padding_that_is_not_zero_is_refused(name: str) -> None:
    kernels, (positions, limit) = named(name), CASES["the only one"]
    assert kernels.gaps_encode(positions, limit).tolist() == [1]
    for byte in range(256):
        found = kernels.gaps_decode(np.array([byte], dtype=np.uint8), 1, 1)
        assert (found is not None) is (byte == 1)


@each_backend
def test_an_escape_that_was_not_needed_is_refused(name: str) -> None:
    """Among 1024 positions a gap of 3 with k = 9 takes ten bits, and no encoder escapes it."""
    kernels = named(name)
    escaped = (3 << 16).to_bytes(4, "little")
    assert kernels.gaps_decode(np.frombuffer(escaped, np.uint8), 1, 1024) is None


@each_backend
def test_altered_streams_are_refused_or_are_the_stream_of_something_else(name: str) -> None:
    random, accepted, tried = np.random.default_rng(0), 0, 0
    for limit, density in ((300, 0.1), (40, 0.9), (20_000, 0.002), (2**40, 1e-11)):
        positions = uniform(limit, density) if limit < 2**30 else np.sort(random.integers(0, limit, 12))
        stream = reference.gaps_encode(positions, limit)
        for bit in range(8 * len(stream)):
            altered = stream.copy()
            altered[bit // 8] ^= 1 << (bit % 8)
            tried += 1
            accepted += assert_refused_or_canonical(named(name), altered, len(positions), limit)
    assert 0 < accepted < tried


@each_backend
def test_random_bytes_are_refused_or_are_the_stream_of_something(name: str) -> None:
    random, accepted = np.random.default_rng(1), 0
    for _ in range(1500):
        stream = random.integers(0, 256, random.integers(0, 12), dtype=np.uint8) & random.choice([255, 17, 1])
        count, limit = int(random.integers(0, 20)), int(2 ** random.uniform(0, 48))
        accepted += assert_refused_or_canonical(named(name), stream, count, limit)
    assert accepted > 0


@each_backend
@pytest.mark.parametrize(
    ("positions", "limit"),
    [
        ([3, 3], 10), ([4, 3], 10), ([-1], 10), ([10], 10), ([0], 0), ([-(2**63), 2**63 - 1], 10), ([0], 2**48 + 1),
        ([], -1),
    ],
)  # fmt: skip
def test_positions_that_cannot_be_encoded_are_refused(name: str, positions: list[int], limit: int) -> None:
    with pytest.raises(ValueError, match="position"):
        named(name).gaps_encode(np.array(positions, dtype=np.int64), limit)


@each_backend
def test_counts_and_limits_that_cannot_be_decoded_are_refused(name: str) -> None:
    nothing = np.zeros(0, np.uint8)
    for count, limit in ((-1, 10), (0, -1), (0, 2**48 + 1)):
        with pytest.raises(ValueError, match="need 0"):
            named(name).gaps_decode(nothing, count, limit)
    assert named(name).gaps_decode(nothing, 2**62, 2**48) is None
