"""Draws are a function of (seed, step, rank, parameter, offset), and the estimate they make is without bias."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from terngrad.codecs import Segment
from terngrad.kernels import Code, Run, Runs, backends, draw_keys, kernels_for, packed_bytes, reference, set_backend
from terngrad.kernels.layout import Uint32Array
from terngrad.methods import BucketCode, Coder, ParameterInfo, TernGrad

CPU = torch.device("cpu")
WORD = 2**32


def keys_of(*, seed: int = 0, step: int = 0, rank: int = 0, parameters: Sequence[int] = (0,)) -> Uint32Array:
    return draw_keys(seed, step, rank, np.array(parameters, dtype=np.uint64))


def runs_of(lengths: Sequence[int], code: Code = Code.BASE3) -> Runs:
    """One parameter at the start of a buffer, cut into runs of these lengths."""
    rows: list[Run] = []
    offset = packed = 0
    for length in lengths:
        rows.append(Run(offset, length, offset, 0, packed, 0))
        offset, packed = offset + length, packed + packed_bytes(length, code.rows)
    return Runs(rows)


def ternary(values: Tensor, runs: Runs, keys: Uint32Array, scale: float = 1.0) -> Tensor:
    """What the current kernels make of `values`, as -1, 0 and 1."""
    kernels, limit = kernels_for(CPU), torch.tensor([scale])
    packed = torch.zeros(sum(packed_bytes(run.length, Code.BASE3.rows) for run in runs.rows), dtype=torch.uint8)
    kernels.ternarize(values, runs, keys, limit, limit * 2.0**-24, Code.BASE3, packed)
    found = torch.zeros_like(values)
    assert kernels.mean_shared(found, runs, [packed], torch.ones(1), Code.BASE3)
    return found


# A function, not a stream


@pytest.mark.parametrize("lengths", [(8,) * 125 + (1,), (992, 9), (160, 160, 681), (8, 0, 984, 9)], ids=str)
def test_draws_do_not_depend_on_how_a_parameter_is_cut(each_backend: str, lengths: Sequence[int]) -> None:
    values = torch.linspace(-1, 1, 1001)
    whole = ternary(values, runs_of([1001]), keys_of())
    assert 0.2 < whole.abs().mean() < 0.8
    assert torch.equal(ternary(values, runs_of(lengths), keys_of().repeat(len(lengths), 0)), whole)


@pytest.mark.parametrize("name", [name for name in backends() if name != "reference"])
def test_draws_do_not_depend_on_threads_or_backend(name: str) -> None:
    values = torch.linspace(-1, 1, 100_003)
    try:
        set_backend("reference")
        expected = ternary(values, runs_of([100_003]), keys_of())
        for threads in (1, 2, 3):
            set_backend(name, threads)
            assert torch.equal(ternary(values, runs_of([100_003]), keys_of()), expected)
    finally:
        set_backend(backends()[0])


def test_draws_do_not_depend_on_the_code(each_backend: str) -> None:
    values, keys, one = torch.linspace(-1, 1, 1001), keys_of(), torch.ones(1)
    found = []
    for code in Code:
        packed, target = torch.zeros(packed_bytes(1001, code.rows), dtype=torch.uint8), torch.zeros(1001)
        kernels_for(CPU).ternarize(values, runs_of([1001], code), keys, one, one * 2.0**-24, code, packed)
        kernels_for(CPU).mean_shared(target, runs_of([1001], code), [packed], one, code)
        found.append(target)
    assert torch.equal(*found)


def test_a_bucket_leaves_every_global_generator_as_it_was(each_backend: str) -> None:
    coder = Coder(TernGrad(dense_below=0), [ParameterInfo("w", 1000, False)], rank=0, world_size=1, seed=7)
    before = global_generators()
    segments = (Segment(0, 0, 1000),)
    frame = coder.frame(segments, torch.float32, all_dense=False, num_shards=1)
    code = BucketCode(coder, frame, torch.linspace(-1, 1, 1000), bucket=0, step=3)
    scalers = torch.zeros(1, frame.scalers_nbytes, dtype=torch.uint8)
    messages = torch.zeros(1, frame.nbytes, dtype=torch.uint8)
    code.scalers_message(scalers[0])
    code.take_scalers(scalers)
    code.encode(messages)
    code.decode(messages)
    assert global_generators() == before


def global_generators() -> list[object]:
    """The states of torch's, numpy's and Python's own."""
    return [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002


def test_distinct_seeds_steps_ranks_and_parameters_have_distinct_keys() -> None:
    """The keys are fixed, so this cannot fail by chance; 80,000 random 64-bit keys collide with probability 2e-10."""
    parameters = [*range(97), 2**32, 2**63, 2**64 - 1]
    seeds, steps, ranks = (0, 1, -1, 2**40, 2**63), (0, 1, 2, 3, 1000, 10**6, 2**31, 2**33, 5, 7), range(16)
    keys = [keys_of(seed=a, step=b, rank=c, parameters=parameters) for a, b, c in product(seeds, steps, ranks)]
    as_one = np.concatenate(keys).astype(np.uint64) @ np.array([1, 2**32], dtype=np.uint64)
    assert len(np.unique(as_one)) == len(as_one) == 80_000


# Bias


RATIOS = [0.0, 2.0**-30, 2.0**-24, 1e-4, 0.01, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.9, 0.99, 0.9999, 1 - 2.0**-20, 1.0]
NUM_STEPS = 10_000


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 0.7, 3e-20])
def test_the_mean_estimate_over_ten_thousand_steps_is_the_gradient(scale: float) -> None:
    """Every element within 5 standard errors and three draws, and so the mean of the 32 elements of each ratio.

    The exact binomial tails, added over all elements, ratios and scales, give a false-alarm rate of 6e-4.
    """
    ratios = torch.tensor(RATIOS, dtype=torch.float64).repeat_interleave(32)
    values = (scale * ratios * torch.tensor([1.0, -1.0]).repeat(len(ratios) // 2)).float()
    counts = count_sent(values, scale)
    probability = values.double() / float(np.float32(scale))
    assert within_standard_errors(counts / NUM_STEPS, probability, NUM_STEPS)
    signs = torch.where(values < 0, -1, 1).view(-1, 32)
    pooled = (counts.view(-1, 32) * signs).mean(dim=1) / NUM_STEPS
    assert within_standard_errors(pooled, probability.abs().view(-1, 32).mean(dim=1), 32 * NUM_STEPS)


def count_sent(values: Tensor, scale: float) -> Tensor:
    """The sum of the ternary values over NUM_STEPS steps."""
    size, limit = packed_bytes(len(values), Code.BASE3.rows), torch.tensor([scale])
    table = Runs([Run(0, len(values), 0, 0, step * size, 0) for step in range(NUM_STEPS)])
    keys = np.concatenate([keys_of(seed=11, step=step) for step in range(NUM_STEPS)])
    packed = torch.zeros(NUM_STEPS, size, dtype=torch.uint8)
    kernels = kernels_for(CPU)
    kernels.ternarize(values, table, keys, limit, limit * 2.0**-24, Code.BASE3, packed.view(-1))
    total = torch.zeros(len(values))
    one_run = Runs([Run(0, len(values), 0, 0, 0, 0)])
    assert kernels.mean_shared(total, one_run, list(packed), torch.ones(1), Code.BASE3)
    return total.double()


def within_standard_errors(found: Tensor, expected: Tensor, num_draws: int) -> bool:
    error = (expected.abs() * (1 - expected.abs()) / num_draws).sqrt()
    inexact = (expected != 0) & (expected.abs() != 1)
    return bool(((found - expected).abs() <= 5 * error + 3 * inexact / num_draws).all())


def pairs() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(a, s) with 0 <= a <= s: ratios random, tiny, next to one and on the edges of draws; s from 2^-100 to 2^127."""
    rng = np.random.default_rng(5)
    s = (2.0 ** rng.uniform(-100, 127, 3000)).astype(np.float32)
    s[:200] = 2.0 ** rng.integers(-100, 127, 200)
    one, zero = np.float32(1), np.float32(0)
    ratio = np.concatenate([rng.random(1000), 2.0 ** rng.uniform(-40, 0, 1000), rng.integers(0, 2**24, 1000) / 2**24])
    a = np.minimum((s * rng.permutation(ratio)).astype(np.float32), s)
    a[:3] = zero, s[1], s[2]
    a[3:300:3] = s[3:300:3]
    a[4:300:3] = np.nextafter(s[4:300:3], zero)
    a[5:300:3] = s[5:300:3] * (one / np.float32(3))
    return a, s


def count_draws(a: npt.NDArray[np.float32], s: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """How many of the 2^24 draws k have fl(k * step) < a: the products grow with k, so a binary search counts them."""
    step = s * np.float32(2.0**-24)
    low, high = np.zeros(len(a), dtype=np.int64), np.full(len(a), 2**24)
    while (low < high).any():
        middle = (low + high) // 2
        below = (middle.astype(np.float32) * step < a) & (low < high)
        low, high = np.where(below, middle + 1, low), np.where(below, high, np.minimum(middle, high))
    return low


def test_bias_is_at_most_one_draw_in_2_to_24_for_every_pair_tried() -> None:
    """Exact: the number of draws that send, over 2^24, against a / s as fractions."""
    a, s = pairs()
    count = count_draws(a, s)
    for value, scale, sending in zip(a.tolist(), s.tolist(), count.tolist(), strict=True):
        assert abs(Fraction(sending, 2**24) - Fraction(value) / Fraction(scale)) <= Fraction(1, 2**24)
    assert (count[a == 0] == 0).all()
    assert (count[a == s] == 2**24).all()
    assert (a == 0).any()
    assert (a == s).sum() > 50


def offset_of_draw(key: Sequence[int], draw: int) -> int:
    """The offset at which `key` gives `draw`: reference.draws backwards. Every step of it is a bijection of words."""
    x = (draw << 8) * pow(0xD35A2D97, -1, WORD) % WORD ^ key[1]
    x ^= (x >> 15) ^ (x >> 30)
    x = x * pow(0x21F0AAAD, -1, WORD) % WORD
    x ^= x >> 16
    return (x - key[0]) * pow(0x9E3779B9, -1, WORD) % WORD


@given(st.integers(0, WORD - 1), st.integers(0, WORD - 1), st.integers(0, 2**24 - 1))
def test_every_key_reaches_every_draw(first: int, second: int, draw: int) -> None:
    offset = offset_of_draw((first, second), draw)
    assert reference.draws((first, second), offset, 1, CPU).item() == draw


def test_the_kernel_sends_for_exactly_the_draws_that_the_count_says(each_backend: str) -> None:
    """Runs are placed at offsets where the draw is the last that sends, and the first that does not."""
    a, s = (values[::6] for values in pairs())
    count = count_draws(a, s)
    key = keys_of()[0].tolist()
    rows: list[Run] = []
    lanes: list[int] = []
    expected: list[bool] = []
    for unit, sending in enumerate(count.tolist()):
        for draw in (sending - 1, sending):
            if 0 <= draw < 2**24:
                offset = offset_of_draw(key, draw)
                rows.append(Run(8 * unit, 8, offset // 8 * 8, unit, 32 * len(rows), 0))
                lanes.append(offset % 8)
                expected.append(draw < sending)
    values = torch.from_numpy(a).repeat_interleave(8)
    packed, scale = torch.zeros(32 * len(rows), dtype=torch.uint8), torch.from_numpy(s)
    keys = keys_of().repeat(len(rows), 0)
    kernels_for(CPU).ternarize(values, Runs(rows), keys, scale, scale * 2.0**-24, Code.TWO_BIT, packed)
    digits = packed.view(-1, 8, 4)[torch.arange(len(rows)), torch.tensor(lanes), 3] >> 6  # row 0 is in the top bits
    assert torch.equal(digits == 2, torch.tensor(expected))
    assert 0 < sum(expected) < len(expected)


# How random the draws are. n = 2^20 draws a key, 12 keys that differ in one of seed, step, rank, parameter.

NUM_DRAWS = 2**20
KEYS = [
    keys_of(seed=seed, step=step, rank=rank, parameters=[parameter])[0].tolist()
    for seed, step, rank, parameter in
    [(0, 0, 0, p) for p in range(4)] + [(0, 0, r, 0) for r in (1, 2, 3)]
    + [(0, t, 0, 0) for t in (1, 2, 3)] + [(1, 0, 0, 0), (2, 0, 0, 0)]
]  # fmt: skip


def centred_draws(key: Sequence[int]) -> Tensor:
    """Uniform on [-0.5, 0.5), with variance 1/12."""
    return (reference.draws(key, 0, NUM_DRAWS, CPU).double() + 0.5) / 2**24 - 0.5


def correlation(a: Tensor, b: Tensor) -> float:
    return float(12 * (a * b).mean())


@pytest.mark.statistical
@pytest.mark.parametrize("shift", [0, 8, 16], ids=["low", "middle", "high"])
def test_draws_fill_256_bins_evenly(shift: int) -> None:
    """Chi-squared with 255 degrees of freedom within 147..397; 3e-8 outside on either side, over 36 tests 2e-6."""
    for key in KEYS:
        bins = torch.bincount((reference.draws(key, 0, NUM_DRAWS, CPU) >> shift) & 255, minlength=256).double()
        expected = NUM_DRAWS / 256
        assert 147 < float(((bins - expected) ** 2 / expected).sum()) < 397


@pytest.mark.statistical
def test_neighbouring_draws_are_uncorrelated() -> None:
    """|r| <= 6 / sqrt(n): a false-alarm rate of 2e-9 each, 2e-7 over 84 tests."""
    for key in KEYS:
        draws = centred_draws(key)
        for lag in (1, 2, 3, 7, 8, 16, 160):
            assert abs(correlation(draws[lag:], draws[:-lag])) <= 6 / NUM_DRAWS**0.5


@pytest.mark.statistical
def test_draws_of_different_ranks_steps_parameters_and_seeds_are_uncorrelated() -> None:
    """Every pair of keys, aligned and shifted by one; |r| <= 6 / sqrt(n), 2e-9 each, 3e-7 over 132 tests."""
    draws = [centred_draws(key) for key in KEYS]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert abs(correlation(a, b)) <= 6 / NUM_DRAWS**0.5
            assert abs(correlation(a[1:], b[:-1])) <= 6 / NUM_DRAWS**0.5
