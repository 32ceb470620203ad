"""Sparse kernels: native equals reference bit for bit, and both do what the methods count on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_names import named
from layouts import DTYPES, same_bits
from segments import LARGE, LENGTHS, UNTOUCHED, Bucket, make_bucket, make_entries, same_entries
from torch import Tensor

from terngrad.kernels import Entries, Kernels, backends, reference

CPU = torch.device("cpu")
NATIVE = [name for name in backends() if name.startswith("native:")]
RULES = {"plain": (False, False), "momentum": (True, False), "nesterov": (True, True)}  # velocities, nesterov
FLOAT32 = np.float32


each_backend = pytest.mark.parametrize("name", backends())
each_native = pytest.mark.parametrize("name", NATIVE)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
each_rule = pytest.mark.parametrize("rule", RULES)


def thresholds_of(bucket: Bucket, kind: str = "mixed") -> Tensor:
    """For each segment one that takes some, and now and then all, none, or nothing because it is NaN."""
    found = torch.tensor([r.abs().quantile(0.9).item() if r.numel() else 0.0 for r in bucket.residuals])
    if kind == "mixed":
        for i, special in enumerate((-1.0, torch.nan, torch.inf, 0.0)):
            found[3 + i :: 11] = special
    return found


# Accumulate


def assert_same_accumulation(native: Kernels, bucket: Bucket, nesterov: bool, clear: bool) -> None:
    truth, mine = bucket.copy(), bucket.copy()
    expected = truth.accumulate(reference_kernels(), nesterov=nesterov, clear=clear)
    found = mine.accumulate(native, nesterov=nesterov, clear=clear)
    mine.assert_equals(truth)
    assert torch.equal(found.finite, expected.finite)
    for name in expected.statistics._fields:
        assert same_bits(getattr(found.statistics, name), getattr(expected.statistics, name)), name


def reference_kernels() -> Kernels:
    return named("reference")


@each_native
@each_dtype
@each_rule
@pytest.mark.parametrize("clear", [False, True])
def test_accumulation_equals_the_reference(name: str, dtype: torch.dtype, rule: str, clear: bool) -> None:
    velocities, nesterov = RULES[rule]
    assert_same_accumulation(named(name), make_bucket(dtype, velocities=velocities), nesterov, clear)


@each_native
@each_dtype
@each_rule
def test_accumulation_of_values_that_are_not_finite_equals_the_reference(
    name: str, dtype: torch.dtype, rule: str
) -> None:
    velocities, nesterov = RULES[rule]
    bucket = make_bucket(dtype, velocities=velocities)
    bucket.buffer[::97] = torch.nan
    bucket.buffer[1::89] = -torch.inf
    bucket.buffer[2::83] = torch.finfo(dtype).max
    bucket.factors[5] = torch.inf
    bucket.factors[6] = torch.nan
    bucket.factors[20] = 3e38
    bucket.residuals[-1][5] = torch.inf
    bucket.residuals[-2][70:80] = torch.nan
    bucket.residuals[-3][-1] = -3e38
    assert_same_accumulation(named(name), bucket, nesterov, clear=True)


@each_native
@pytest.mark.parametrize("threads", [2, 3])
@each_rule
def test_threads_do_not_change_a_bit_of_an_accumulation(name: str, threads: int, rule: str) -> None:
    velocities, nesterov = RULES[rule]
    bucket = make_bucket(lengths=LARGE, velocities=velocities)
    bucket.buffer[50_000] = torch.nan
    assert_same_accumulation(named(name, threads), bucket, nesterov, clear=True)


@each_backend
def test_momentum_and_nesterov_are_those_of_the_papers(name: str) -> None:
    for nesterov in (False, True):
        bucket = make_bucket()
        before = bucket.copy()
        bucket.accumulate(named(name), momentum=0.875, nesterov=nesterov)
        for i in range(bucket.num_segments):
            g = before.segment(i).double() * before.factors[i].double()
            assert before.velocities is not None
            assert bucket.velocities is not None
            u = before.velocities[i].double()
            u = 0.875 * (u + g) if nesterov else 0.875 * u + g
            v = before.residuals[i].double() + (u + g if nesterov else u)
            torch.testing.assert_close(bucket.velocities[i].double(), u, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(bucket.residuals[i].double(), v, rtol=1e-6, atol=1e-7)


@each_backend
@each_dtype
@each_rule
def test_an_element_that_is_not_finite_keeps_its_state_and_flags_its_segment_alone(
    name: str, dtype: torch.dtype, rule: str
) -> None:
    velocities, nesterov = RULES[rule]
    clean, broken = make_bucket(dtype, velocities=velocities), make_bucket(dtype, velocities=velocities)
    before, hit = broken.copy(), [i for i, n in enumerate(LENGTHS) if n > 0][::3]
    for i in hit:
        broken.segment(i)[broken.lengths[i] // 2] = (torch.nan, torch.inf, -torch.inf)[i % 3]
    clean.accumulate(named(name), nesterov=nesterov)
    finite = broken.accumulate(named(name), nesterov=nesterov).finite
    assert [i for i in range(len(LENGTHS)) if not finite[i]] == hit
    for now, otherwise, was in zip(broken.residuals, clean.residuals, before.residuals, strict=True):
        middle = len(now) // 2
        kept = torch.zeros(len(now), dtype=torch.bool)
        kept[middle : middle + 1] = not same_bits(now, otherwise)
        assert same_bits(now, torch.where(kept, was, otherwise))
    for i in hit:
        assert same_bits(broken.residuals[i][LENGTHS[i] // 2], before.residuals[i][LENGTHS[i] // 2])
        if broken.velocities is not None and before.velocities is not None:
            assert same_bits(broken.velocities[i][LENGTHS[i] // 2], before.velocities[i][LENGTHS[i] // 2])


@each_backend
@each_dtype
def test_accumulation_clears_its_segments_if_asked_and_touches_nothing_between(name: str, dtype: torch.dtype) -> None:
    kept, cleared = make_bucket(dtype), make_bucket(dtype)
    before = kept.copy()
    kept.accumulate(named(name))
    cleared.accumulate(named(name), clear=True)
    assert same_bits(kept.buffer, before.buffer)
    inside = torch.ones(len(kept.buffer), dtype=torch.bool)
    for i in range(cleared.num_segments):
        assert not cleared.segment(i).view(torch.int16 if dtype.itemsize == 2 else torch.int32).any()
        source, length = cleared.spans[i].tolist()
        inside[source : source + length] = False
    assert (cleared.buffer[inside] == UNTOUCHED).all()
    for with_clear, without in zip(cleared.residuals, kept.residuals, strict=True):
        assert same_bits(with_clear, without)


@each_backend
def test_maxima_are_the_largest_of_every_64_elements(name: str) -> None:
    bucket = make_bucket()
    bucket.accumulate(named(name))
    expected = [part.abs().max() for v in bucket.residuals for part in v.split(64) if len(part)]
    assert same_bits(bucket.maxima, torch.stack(expected))


# Select


def selected(kernels: Kernels, bucket: Bucket, thresholds: Tensor, factor: float) -> tuple[Entries, Tensor | None]:
    return kernels.select(bucket.residuals, bucket.velocities, bucket.maxima, thresholds, factor)


def assert_same_selection(native: Kernels, bucket: Bucket, thresholds: Tensor, factor: float) -> None:
    truth, mine = bucket.copy(), bucket.copy()
    expected, expected_saved = selected(reference_kernels(), truth, thresholds, factor)
    found, saved = selected(native, mine, thresholds, factor)
    mine.assert_equals(truth)
    assert same_entries(found, expected)
    assert (saved is None) == (expected_saved is None)
    assert saved is None or (expected_saved is not None and same_bits(saved, expected_saved))


@each_native
@pytest.mark.parametrize("velocities", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.9, 1.0])
def test_selection_equals_the_reference(name: str, velocities: bool, factor: float) -> None:
    bucket = make_bucket(velocities=velocities)
    bucket.accumulate(reference_kernels())
    assert_same_selection(named(name), bucket, thresholds_of(bucket), factor)


@each_native
@pytest.mark.parametrize("factor", [0.0, 0.9])
def test_selection_of_residuals_that_are_not_finite_equals_the_reference(name: str, factor: float) -> None:
    bucket = make_bucket()
    for v in bucket.residuals:
        v[::101] = torch.nan
        v[7::103] = -torch.inf
    bucket.accumulate(reference_kernels())
    assert_same_selection(named(name), bucket, thresholds_of(bucket).nan_to_num(0.5), factor)
    assert_same_selection(named(name), bucket, torch.full((len(LENGTHS),), 0.2), factor)


@each_native
def test_selection_passes_over_the_same_tiles_as_the_reference(name: str) -> None:
    bucket = make_bucket()
    bucket.accumulate(reference_kernels())
    bucket.maxima *= torch.rand(len(bucket.maxima), generator=torch.Generator().manual_seed(1))
    bucket.maxima[::17] = torch.nan
    assert_same_selection(named(name), bucket, thresholds_of(bucket), 0.0)


@each_native
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_selection(name: str, threads: int) -> None:
    bucket = make_bucket(lengths=LARGE)
    bucket.accumulate(reference_kernels())
    assert_same_selection(named(name, threads), bucket, thresholds_of(bucket, "some"), 0.0)


@each_backend
def test_selection_takes_exactly_what_is_above_the_threshold_in_order(name: str) -> None:
    bucket = make_bucket()
    bucket.accumulate(named(name))
    thresholds = thresholds_of(bucket, "some")
    thresholds[-1] = bucket.residuals[-1].abs().sort().values[-10]  # equal is not above
    before = bucket.copy()
    entries, saved = selected(named(name), bucket, thresholds, 0.0)
    assert saved is not None
    assert before.velocities is not None
    first = 0
    for i, v in enumerate(before.residuals):
        part = slice(first, first + int(entries.counts[i]))
        indices = torch.from_numpy(entries.indices[part].astype(np.int64))
        assert torch.equal(indices, (v.abs() > thresholds[i]).nonzero().flatten())
        assert same_bits(entries.values[part], v[indices])
        assert same_bits(saved[part], before.velocities[i][indices])
        first = part.stop
    assert entries.counts[-1] == 9
    assert first == len(entries.indices)


@each_backend
def test_a_threshold_of_minus_one_takes_everything_and_nan_nothing(name: str) -> None:
    bucket = make_bucket()
    bucket.accumulate(named(name))
    before = bucket.copy()
    nothing, _ = selected(named(name), bucket, torch.full((len(LENGTHS),), torch.nan), 0.0)
    assert nothing.counts.tolist() == [0] * len(LENGTHS)
    bucket.assert_equals(before)
    everything, _ = selected(named(name), bucket, torch.full((len(LENGTHS),), -1.0), 0.0)
    assert everything.counts.tolist() == list(LENGTHS)
    assert same_bits(everything.values, torch.cat(before.residuals))
    assert all(same_bits(v, torch.zeros_like(v)) for v in bucket.residuals)


@each_backend
@each_dtype
@each_rule
def test_what_was_sent_and_what_is_kept_are_residual_plus_change_exactly(
    name: str, dtype: torch.dtype, rule: str
) -> None:
    velocities, nesterov = RULES[rule]
    bucket = make_bucket(dtype, velocities=velocities)
    before = bucket.copy()
    bucket.accumulate(named(name), nesterov=nesterov)
    entries, _ = selected(named(name), bucket, thresholds_of(bucket, "some"), 0.0)
    momentum = torch.tensor(0.9, dtype=torch.float32)
    for i, (indices, values) in enumerate(split(entries)):
        g = before.segment(i).float() * before.factors[i]
        u = g if before.velocities is None else before.velocities[i]
        if before.velocities is not None:
            u = momentum * (u + g) if nesterov else momentum * u + g
        sent = torch.zeros(LENGTHS[i])
        sent[indices] = values
        assert torch.equal(bucket.residuals[i] + sent, before.residuals[i] + (u + g if nesterov else u))
        assert not bucket.residuals[i][indices].any()
        if bucket.velocities is not None:
            assert not bucket.velocities[i][indices].any()
    assert 0 < len(entries.indices) < sum(LENGTHS)


def split(entries: Entries) -> list[tuple[Tensor, Tensor]]:
    indices = torch.from_numpy(entries.indices.astype(np.int64))
    counts = entries.counts.tolist()
    return list(zip(indices.split(counts), entries.values.split(counts), strict=True))


@each_backend
def test_factor_m_without_velocities_is_samomentum_up_to_rounding(name: str) -> None:
    momentum, threshold, steps, numel = 0.9, 1.5, 20, 5000
    stored, u = make_bucket(lengths=(numel,), velocities=False), torch.zeros(numel, dtype=torch.float64)
    stored.residuals[0].zero_()
    num_sent = 0
    for step in range(steps):
        stored.segment(0).copy_(torch.randn(numel, generator=torch.Generator().manual_seed(step)))
        u = momentum * u + stored.segment(0).double()
        sent = u.abs() > threshold
        stored.accumulate(named(name))
        entries, _ = selected(named(name), stored, torch.tensor([threshold]), momentum)
        assert torch.equal(torch.from_numpy(entries.indices.astype(np.int64)), sent.nonzero().flatten())
        torch.testing.assert_close(entries.values.double(), u[sent], rtol=1e-4, atol=1e-5)
        u = torch.where(sent, u, u / momentum)
        num_sent += int(sent.sum())
    assert steps * numel * 0.1 < num_sent < steps * numel * 0.9


# Putting back


@each_backend
@pytest.mark.parametrize("velocities", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.9])
def test_restoring_a_selection_undoes_it_exactly(name: str, velocities: bool, factor: float) -> None:
    kernels, bucket = named(name), make_bucket(velocities=velocities)
    bucket.accumulate(kernels)
    before = bucket.copy()
    entries, saved = selected(kernels, bucket, thresholds_of(bucket), factor)
    assert len(entries.indices) > 0
    kernels.restore(bucket.residuals, bucket.velocities, entries, saved)
    bucket.assert_equals(before)


@each_backend
def test_restoring_some_entries_leaves_the_others_taken(name: str) -> None:
    kernels, bucket = named(name), make_bucket()
    bucket.accumulate(kernels)
    before = bucket.copy()
    entries, saved = selected(kernels, bucket, thresholds_of(bucket, "some"), 0.0)
    assert saved is not None
    back = np.arange(len(entries.indices)) % 3 == 0
    owners = np.repeat(np.arange(len(LENGTHS)), entries.counts)
    counts = np.bincount(owners[back], minlength=len(LENGTHS)).astype(np.int64)
    kept = torch.from_numpy(back)
    kernels.restore(
        bucket.residuals, bucket.velocities, Entries(counts, entries.indices[back], entries.values[kept]), saved[kept]
    )
    taken = owners.astype(np.int64), entries.indices.astype(np.int64)
    for i, v in enumerate(bucket.residuals):
        mine = taken[1][(taken[0] == i) & ~back]
        expected = before.residuals[i].clone()
        expected[torch.from_numpy(mine)] = 0.0
        assert same_bits(v, expected)


@each_backend
def test_adding_back_adds_each_value_to_its_residual(name: str) -> None:
    kernels, bucket = named(name), make_bucket()
    entries = make_entries(LENGTHS, 0.1, 5)
    before = bucket.copy()
    kernels.add_back(bucket.residuals, entries)
    for i, (indices, values) in enumerate(split(entries)):
        expected = before.residuals[i].clone()
        expected[indices] += values
        assert same_bits(bucket.residuals[i], expected)


@each_backend
def test_entries_outside_their_segment_are_refused_before_anything_is_written(name: str) -> None:
    kernels, bucket = named(name), make_bucket(lengths=(5, 64))
    before = bucket.copy()
    bad = Entries(np.array([1, 1]), np.array([4, 64], dtype=np.uint32), torch.ones(2))
    with pytest.raises(ValueError, match=r"index 64 in segment 1 of 64"):
        kernels.add_back(bucket.residuals, bad)
    with pytest.raises(ValueError, match=r"index 64 in segment 1 of 64"):
        kernels.restore(bucket.residuals, bucket.velocities, bad, torch.ones(2))
    bucket.assert_equals(before)


# Sums of entries


def zero_buffer(lengths: tuple[int, ...], dtype: torch.dtype) -> Bucket:
    bucket = make_bucket(dtype, lengths)
    for i in range(bucket.num_segments):
        bucket.segment(i).zero_()
    return bucket


@each_backend
@each_dtype
@pytest.mark.parametrize("num_payloads", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("density", [0.01, 0.5])
def test_the_mean_of_entries_is_that_of_dense_gradients(
    name: str, dtype: torch.dtype, num_payloads: int, density: float
) -> None:
    payloads = [make_entries(LENGTHS, density, seed) for seed in range(num_payloads)]
    bucket = zero_buffer(LENGTHS, dtype)
    expected = bucket.copy()
    share = torch.tensor(float(FLOAT32(1) / FLOAT32(num_payloads)))
    for i, length in enumerate(LENGTHS):
        total = torch.zeros(length)
        for payload in payloads:
            mine = torch.zeros(length)
            indices, values = split(payload)[i]
            mine[indices] = values
            total = total + mine
        expected.segment(i).copy_((total * share).to(dtype))
    assert named(name).scatter_mean(bucket.buffer, bucket.spans, payloads, num_payloads)
    bucket.assert_equals(expected)


@each_native
@each_dtype
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_mean_and_merger_of_extreme_entries_equal_the_reference(name: str, dtype: torch.dtype, threads: int) -> None:
    payloads = [make_entries(LARGE, 0.01, seed) for seed in range(4)]
    payloads.append(make_entries(LARGE, 0.0, 0))
    for payload, value in zip(payloads, (torch.nan, torch.inf, -torch.inf, 3e38), strict=False):
        payload.values[::50] = value
        payload.values[1::50] = 1e-42
    truth, mine = zero_buffer(LARGE, dtype), zero_buffer(LARGE, dtype)
    assert reference.scatter_mean(truth.buffer, truth.spans, payloads, 5)
    assert named(name, threads).scatter_mean(mine.buffer, mine.spans, payloads, 5)
    mine.assert_equals(truth)
    expected = reference.merge(truth.spans[:, 1], payloads)
    found = named(name, threads).merge(mine.spans[:, 1], payloads)
    assert expected is not None
    assert found is not None
    assert same_entries(found, expected)


@each_backend
@each_dtype
def test_the_mean_of_a_merger_is_the_mean_of_its_parts(name: str, dtype: torch.dtype) -> None:
    kernels, payloads = named(name), [make_entries(LENGTHS, 0.05, seed) for seed in range(3)]
    direct, through = zero_buffer(LENGTHS, dtype), zero_buffer(LENGTHS, dtype)
    assert kernels.scatter_mean(direct.buffer, direct.spans, payloads, 3)
    merged = kernels.merge(np.array(LENGTHS), payloads)
    assert merged is not None
    assert kernels.scatter_mean(through.buffer, through.spans, [merged], 3)
    through.assert_equals(direct)


@each_backend
@pytest.mark.parametrize("indices", [[3, 3, 5], [3, 2, 5], [0, 1, 100], [0, 1, 2**32 - 1], [2**32 - 1, 0, 1]], ids=str)
def test_indices_that_do_not_increase_or_are_too_large_are_refused_and_nothing_is_written(
    name: str, indices: list[int]
) -> None:
    kernels, good = named(name), Entries(np.array([2]), np.array([7, 99], dtype=np.uint32), torch.ones(2))
    bad = Entries(np.array([3]), np.array(indices, dtype=np.uint32), torch.ones(3))
    buffer, spans = torch.zeros(100), np.array([[0, 100]])
    assert kernels.scatter_mean(buffer, spans, [good, bad], 2) is False
    assert kernels.merge(spans[:, 1], [good, bad]) is None
    assert not buffer.any()
    assert kernels.scatter_mean(buffer, spans, [good, good], 2) is True


@each_backend
@pytest.mark.parametrize(
    ("counts", "num_indices", "num_values"), [([3], 2, 2), ([1], 2, 2), ([2], 2, 1), ([-1], 0, 0), ([1, 1], 2, 2)]
)
def test_counts_that_do_not_match_the_entries_are_refused(
    name: str, counts: list[int], num_indices: int, num_values: int
) -> None:
    kernels, buffer = named(name), torch.zeros(9)
    bad = Entries(np.array(counts), np.arange(num_indices, dtype=np.uint32), torch.ones(num_values))
    for call in (
        lambda: kernels.scatter_mean(buffer, np.array([[0, 9]]), [bad], 1),
        lambda: kernels.merge(np.array([9]), [bad]),
        lambda: kernels.add_back([buffer], bad),
        lambda: kernels.restore([buffer], None, bad, None),
    ):
        with pytest.raises(ValueError, match=r"entries|values|indices"):
            call()


# Shapes that do not fit


def calls_with_something_missing(kernels: Kernels, bucket: Bucket) -> list[Callable[[], object]]:
    spans, u, v = bucket.spans, bucket.velocities, bucket.residuals
    assert u is not None
    ones, maxima = torch.ones(bucket.num_segments), bucket.maxima
    entries = make_entries(bucket.lengths, 0.5, 0)
    outside = spans + np.array([[len(bucket.buffer), 0]])
    return [
        lambda: kernels.accumulate(bucket.buffer, spans, u[1:], v, ones, maxima),
        lambda: kernels.accumulate(bucket.buffer, spans, u, [*v[:-1], v[-1][1:]], ones, maxima),
        lambda: kernels.accumulate(bucket.buffer, spans, u, v, ones, maxima[1:]),
        lambda: kernels.select(v, u[1:], maxima, ones),
        lambda: kernels.select(v, u, maxima[:-1], ones),
        lambda: kernels.select(v, u, maxima, ones[1:]),
        lambda: kernels.restore(v, u, entries, entries.values[1:]),
        lambda: kernels.restore(v, u, entries, None),
        lambda: kernels.scatter_mean(bucket.buffer, spans, [], 1),
        lambda: kernels.scatter_mean(bucket.buffer, spans, [entries], 0),
        lambda: kernels.merge(spans[:, 1], []),
    ] + (
        [
            lambda: kernels.accumulate(bucket.buffer, outside, u, v, ones, maxima),
            lambda: kernels.accumulate(bucket.buffer, spans, u, v, ones[1:], maxima),
            lambda: kernels.accumulate(bucket.buffer, spans, u, [x.double() for x in v], ones, maxima),
            lambda: kernels.accumulate(bucket.buffer, spans, u, v, ones, torch.stack([maxima] * 2, dim=1)[:, 0]),
            lambda: kernels.scatter_mean(bucket.buffer, outside, [entries], 1),
        ]
        if kernels.name != "reference"
        else []
    )


@each_backend
def test_states_and_tables_that_do_not_fit_are_refused(name: str) -> None:
    bucket = make_bucket(lengths=(5, 64, 65))
    before = bucket.copy()
    for i, call in enumerate(calls_with_something_missing(named(name), bucket)):
        with pytest.raises(ValueError, match=r"."):
            pytest.fail(f"call {i} was accepted: {call()}")
        bucket.assert_equals(before)


@each_backend
def test_a_bucket_without_segments_is_nothing(name: str) -> None:
    kernels, none = named(name), np.zeros((0, 2), dtype=np.int64)
    empty = torch.zeros(0)
    found = kernels.accumulate(torch.ones(3), none, None, [], empty, empty)
    assert len(found.finite) == len(found.statistics.sum) == 0
    entries, saved = kernels.select([], None, empty, empty)
    assert len(entries.counts) == len(entries.indices) == len(entries.values) == 0
    assert saved is None
    kernels.restore([], None, entries, None)
    kernels.add_back([], entries)
    assert kernels.scatter_mean(torch.ones(3), none, [entries], 1)
    assert kernels.merge(np.zeros(0, np.int64), [entries]) is not None
