"""Every native backend equals the reference bit for bit, wherever the reference is defined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_names import named
from layouts import BLOCKS, DTYPES, PIECES, UNTOUCHED, Layout, gradient, lay_out, random_codes, same_bits
from torch import Tensor

from terngrad.errors import ConfigurationError
from terngrad.kernels import (
    Code,
    Kernels,
    Runs,
    backend,
    backends,
    kernels_for,
    level_rows,
    packed_bytes,
    reference,
    set_backend,
)

CPU = torch.device("cpu")
NATIVE = [name for name in backends() if name.startswith("native:")]
SMALL = ((1,), (8, 160, 161), (3,))
# Every block and every number of payloads, without all their pairs.
BLOCKS_AND_PAYLOADS = [(0, 1), (8, 2), (64, 3), (512, 4), (0, 5), (8, 64), (64, 1), (512, 2)]
LARGE = ((8, 120000, 90003), (5,), (200003,))  # enough for three threads in every kernel


@pytest.fixture(params=NATIVE)
def native(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    before = backend()
    set_backend(request.param)
    yield kernels_for(CPU)
    set_backend(before)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(params=BLOCKS, ids=lambda block: f"block{block}")
def block(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=list(Code), ids=lambda code: code.name.lower())
def code(request: pytest.FixtureRequest) -> Code:
    return Code(request.param)


def scalers(layout: Layout, seed: int = 0) -> Tensor:
    """One for each unit: most of ordinary size, a few zero, not finite, subnormal or huge."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(layout.num_units, generator=generator)
    for special in (0.0, torch.nan, torch.inf, 1e-42, 3e38, 65504.0):
        values[torch.randint(layout.num_units, (1,), generator=generator)] = special
    return values


def limits_and_steps(values: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Limits and steps as TernGrad makes them, some units clipped and some larger on another rank."""
    largest = reference.statistics(values, layout.spans).largest
    scale = largest * torch.linspace(0.5, 2.0, layout.num_units)
    return torch.minimum(largest, scale), scale * 2.0**-24


# Statistics


def assert_same_statistics(native: Kernels, values: Tensor, layout: Layout) -> None:
    expected, found = reference.statistics(values, layout.spans), native.statistics(values, layout.spans)
    for name in expected._fields:
        assert same_bits(getattr(found, name), getattr(expected, name)), name


def test_statistics_equal_the_reference(native: Kernels, dtype: torch.dtype, block: int) -> None:
    layout = lay_out(Code.BASE3, block)
    assert_same_statistics(native, gradient(layout.numel, dtype), layout)


def test_statistics_of_extreme_values_equal_the_reference(native: Kernels, dtype: torch.dtype, block: int) -> None:
    layout = lay_out(Code.BASE3, block)
    assert_same_statistics(native, extremes(layout.numel, dtype), layout)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", backends())
def test_a_value_that_is_not_finite_makes_the_statistics_of_its_span_nan_and_of_no_other(
    name: str, bad: float, dtype: torch.dtype
) -> None:
    kernels = named(name)
    layout = lay_out(Code.BASE3, 64)
    clean = gradient(layout.numel, dtype)
    before = kernels.statistics(clean, layout.spans)
    hit = np.flatnonzero(layout.spans[:, 1] > 0)[::7]
    broken = clean.clone()
    for source, length in layout.spans[hit]:
        broken[source + length // 2] = bad
    after = kernels.statistics(broken, layout.spans)
    others = np.setdiff1d(np.arange(layout.num_units), hit)
    for was, now in zip(before, after, strict=True):
        assert now[hit].isnan().all()
        assert same_bits(now[others], was[others])


def extremes(numel: int, dtype: torch.dtype) -> Tensor:
    """Both zeros, subnormals, the smallest and the largest numbers of the type, in random places."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    magnitudes = [0.0, tiny * info.eps, tiny * 0.5, tiny, 1.0, info.max * 0.5, info.max]
    choices = torch.tensor([sign * m for m in magnitudes for sign in (1, -1)], dtype=dtype)
    return choices[torch.randint(len(choices), (numel,), generator=torch.Generator().manual_seed(3))]


# Ternarize


def assert_same_codes(native: Kernels, values: Tensor, layout: Layout, code: Code) -> None:
    limit, step = limits_and_steps(values, layout)
    expected, found = layout.packed(), layout.packed()
    reference.ternarize(values, layout.runs, layout.keys, limit, step, code, expected)
    native.ternarize(values, layout.runs, layout.keys, limit, step, code, found)
    assert torch.equal(found, expected)


def test_ternary_codes_equal_the_reference(native: Kernels, dtype: torch.dtype, code: Code, block: int) -> None:
    layout = lay_out(code, block)
    assert_same_codes(native, gradient(layout.numel, dtype), layout, code)


def test_ternary_codes_of_extreme_values_equal_the_reference(
    native: Kernels, dtype: torch.dtype, code: Code, block: int
) -> None:
    layout = lay_out(code, block)
    assert_same_codes(native, extremes(layout.numel, dtype), layout, code)


def test_ternary_codes_of_gradients_that_are_not_finite_equal_the_reference(
    native: Kernels, dtype: torch.dtype, code: Code, block: int
) -> None:
    layout = lay_out(code, block)
    values = gradient(layout.numel, dtype)
    values[::97] = torch.nan
    values[1::89] = -torch.inf
    assert_same_codes(native, values, layout, code)


def test_ternarize_sends_only_signs_of_its_input_and_never_a_zero(native: Kernels, code: Code) -> None:
    layout = lay_out(code, 0)
    values = gradient(layout.numel, torch.float32)
    limit, step = limits_and_steps(values, layout)
    packed, found = layout.packed(), torch.zeros(layout.numel)
    native.ternarize(values, layout.runs, layout.keys, limit, step, code, packed)
    assert native.mean_shared(found, layout.runs, [packed], torch.ones(layout.num_units), code)
    sent = found != 0
    assert 0.01 < sent.float().mean() < 0.9
    assert torch.equal(found[sent], values.sign()[sent])


# Means of codes


@pytest.mark.parametrize(("block", "num_payloads"), BLOCKS_AND_PAYLOADS)
def test_mean_with_shared_scalers_equals_the_reference(
    native: Kernels, dtype: torch.dtype, code: Code, block: int, num_payloads: int
) -> None:
    layout = lay_out(code, block, pieces=PIECES if num_payloads < 10 else SMALL)
    payloads = [random_codes(code, layout, seed) for seed in range(num_payloads)]
    expected = gradient(layout.numel, dtype)
    found = expected.clone()
    assert reference.mean_shared(expected, layout.runs, payloads, scalers(layout), code)
    assert native.mean_shared(found, layout.runs, payloads, scalers(layout), code)
    assert same_bits(found, expected)


@pytest.mark.parametrize(("block", "num_payloads"), BLOCKS_AND_PAYLOADS)
def test_mean_with_own_scalers_equals_the_reference(
    native: Kernels, dtype: torch.dtype, code: Code, block: int, num_payloads: int
) -> None:
    layout = lay_out(code, block, pieces=PIECES if num_payloads < 10 else SMALL)
    payloads = [random_codes(code, layout, seed) for seed in range(num_payloads)]
    scale = torch.stack([scalers(layout, seed) for seed in range(num_payloads)])
    expected = gradient(layout.numel, dtype)
    found = expected.clone()
    assert reference.mean_own(expected, layout.runs, payloads, scale, code)
    assert native.mean_own(found, layout.runs, payloads, scale, code)
    assert same_bits(found, expected)


@pytest.mark.parametrize("num_payloads", [1, 2, 3, 4, 5, 64, 400])
def test_levels_of_a_sum_equal_the_reference(native: Kernels, code: Code, num_payloads: int) -> None:
    layout = lay_out(code, 0, num_payloads, PIECES if num_payloads < 10 else SMALL)
    payloads = [random_codes(code, layout, seed) for seed in range(min(num_payloads, 5))]
    payloads = [payloads[i % len(payloads)] for i in range(num_payloads)]
    expected, found = layout.levels(), layout.levels()
    assert reference.sum_levels(layout.runs, payloads, code, expected)
    assert native.sum_levels(layout.runs, payloads, code, found)
    assert torch.equal(found, expected)


def random_levels(layout: Layout, num_payloads: int) -> Tensor:
    """Arbitrary valid words, padding included."""
    words = np.random.default_rng(0).integers(
        0, (2 * num_payloads + 1) ** level_rows(num_payloads), layout.levels_nbytes, dtype=np.uint64
    )
    levels = layout.levels()
    for run in layout.runs.rows:
        size = packed_bytes(run.length, level_rows(num_payloads))
        part = words[run.levels : run.levels + size // 4].astype("<u4").tobytes()
        levels[run.levels : run.levels + size] = torch.tensor(list(part), dtype=torch.uint8)
    return levels


@pytest.mark.parametrize(("block", "num_payloads"), [*BLOCKS_AND_PAYLOADS, (0, 1000), (512, 32767)])
def test_mean_of_levels_equals_the_reference(
    native: Kernels, dtype: torch.dtype, block: int, num_payloads: int
) -> None:
    layout = lay_out(Code.BASE3, block, num_payloads)
    levels = random_levels(layout, num_payloads)
    expected = gradient(layout.numel, dtype)
    found = expected.clone()
    assert reference.mean_levels(expected, layout.runs, levels, num_payloads, scalers(layout))
    assert native.mean_levels(found, layout.runs, levels, num_payloads, scalers(layout))
    assert same_bits(found, expected)


@pytest.mark.parametrize("num_payloads", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("name", backends())
def test_mean_through_levels_equals_the_mean_of_the_codes(
    name: str, dtype: torch.dtype, code: Code, num_payloads: int
) -> None:
    kernels, layout = named(name), lay_out(code, 64, num_payloads, PIECES if num_payloads < 10 else SMALL)
    payloads = [random_codes(code, layout, seed) for seed in range(num_payloads)]
    direct, through = torch.zeros(layout.numel, dtype=dtype), torch.zeros(layout.numel, dtype=dtype)
    levels, scale = layout.levels(), scalers(layout)
    assert kernels.mean_shared(direct, layout.runs, payloads, scale, code)
    assert kernels.sum_levels(layout.runs, payloads, code, levels)
    assert kernels.mean_levels(through, layout.runs, levels, num_payloads, scale)
    assert same_bits(through, direct)


@pytest.mark.parametrize("name", backends())
def test_a_scaler_that_is_nan_makes_its_elements_nan_and_no_others(name: str, code: Code, dtype: torch.dtype) -> None:
    kernels, layout = named(name), lay_out(code, 64, 2)
    payloads = [random_codes(code, layout, seed) for seed in range(2)]
    scale = torch.ones(layout.num_units)
    scale[::5] = torch.nan
    broken = torch.zeros(layout.numel, dtype=torch.bool)
    for source, length in layout.spans[::5]:
        broken[source : source + length] = True
    levels, results = layout.levels(), [torch.zeros(layout.numel, dtype=dtype) for _ in range(3)]
    kernels.mean_shared(results[0], layout.runs, payloads, scale, code)
    kernels.mean_own(results[1], layout.runs, payloads, torch.stack([torch.ones_like(scale), scale]), code)
    kernels.sum_levels(layout.runs, payloads, code, levels)
    kernels.mean_levels(results[2], layout.runs, levels, 2, scale)
    for result in results:
        assert torch.equal(result.isnan(), broken)


@pytest.mark.parametrize("name", backends())
def test_means_write_their_runs_and_nothing_between_them(name: str, dtype: torch.dtype, code: Code) -> None:
    kernels, layout = named(name), lay_out(code, 0)
    target = torch.full((layout.numel,), 7.0, dtype=dtype)
    kernels.mean_shared(target, layout.runs, [random_codes(code, layout, 0)], torch.ones(layout.num_units), code)
    inside = torch.zeros(layout.numel, dtype=torch.bool)
    for run in layout.runs.rows:
        inside[run.source : run.source + run.length] = True
    assert torch.equal(target == 7.0, ~inside)


# Error


def test_error_equals_the_reference(native: Kernels, dtype: torch.dtype, code: Code, block: int) -> None:
    layout = lay_out(code, block)
    values, packed, scale = gradient(layout.numel, dtype), random_codes(code, layout, 0), scalers(layout)
    nonzero, squared, good = reference.error(values, layout.runs, packed, scale, code)
    found_nonzero, found_squared, found_good = native.error(values, layout.runs, packed, scale, code)
    assert good
    assert found_good
    assert torch.equal(found_nonzero, nonzero)
    assert same_bits(found_squared, squared)


# Threads


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", NATIVE)
def test_threads_do_not_change_a_bit(name: str, threads: int, dtype: torch.dtype, code: Code) -> None:
    set_backend(name, threads)
    several = kernels_for(CPU)
    set_backend(backends()[0])
    layout = lay_out(code, 512, 3, LARGE)
    values = gradient(layout.numel, dtype)
    assert_same_statistics(several, values, layout)
    assert_same_codes(several, values, layout, code)
    payloads = [random_codes(code, layout, seed) for seed in range(3)]
    scale = torch.stack([scalers(layout, seed) for seed in range(3)])
    results: list[list[Tensor]] = []
    for kernels in (reference, several):
        buffers, levels = [torch.zeros_like(values) for _ in range(3)], layout.levels()
        assert kernels.mean_shared(buffers[0], layout.runs, payloads, scale[0], code)
        assert kernels.mean_own(buffers[1], layout.runs, payloads, scale, code)
        assert kernels.sum_levels(layout.runs, payloads, code, levels)
        assert kernels.mean_levels(buffers[2], layout.runs, levels, 3, scale[0])
        nonzero, squared, good = kernels.error(values, layout.runs, payloads[0], scale[0], code)
        assert good
        results.append([*buffers, levels, nonzero, squared])
    for expected, found in zip(*results, strict=True):
        assert same_bits(found, expected)


# Conversions


def test_loading_each_of_the_65536_half_patterns_equals_torch(native: Kernels) -> None:
    patterns = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    spans = np.stack([np.arange(65536), np.ones(65536)], axis=1).astype(np.int64)
    for dtype in (torch.float16, torch.bfloat16):
        values = patterns.view(dtype)
        found = native.statistics(values, spans)
        expected = torch.where(values.float().isfinite(), values.float(), torch.nan)
        assert same_bits(found.largest, expected.abs())
        assert same_bits(found.sum, expected.double() + 0.0)  # a sum begins with 0.0, so -0.0 does not survive it


def around_every_boundary(dtype: torch.dtype) -> Tensor:
    """All finite numbers of a 16-bit type, the midpoints between neighbours, and the floats next to all of these."""
    numbers = torch.arange(0, 0x7FFF, dtype=torch.int16).view(dtype).double()
    numbers = torch.cat([numbers[numbers.isfinite()], torch.tensor([2.0 ** (16 if dtype is torch.float16 else 128)])])
    exact = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2]).float()
    beside = [torch.nextafter(exact, torch.tensor(direction)) for direction in (torch.inf, 0.0)]
    extra = torch.tensor([torch.inf, torch.nan, 1e-45, 3.4e38])
    positive = torch.cat([exact, *beside, extra])
    return torch.cat([positive, -positive])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_storing_rounds_as_torch_does_around_every_boundary(native: Kernels, half: torch.dtype) -> None:
    scale = around_every_boundary(half)
    numel = 8 * len(scale)
    layout = lay_out(Code.TWO_BIT, 8, pieces=[(numel,)])
    plus_one = torch.full((layout.packed_nbytes,), 0b10101010, dtype=torch.uint8)
    found = torch.zeros(layout.numel, dtype=half)
    assert native.mean_shared(found, layout.runs, [plus_one], scale, Code.TWO_BIT)
    assert same_bits(found[3 : 3 + numel].view(-1, 8), scale.to(half)[:, None].expand(-1, 8).contiguous())


# Codes that no encoder writes


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize("where", ["first", "last"])
def test_every_kernel_notices_a_code_that_no_encoder_writes(name: str, code: Code, where: str) -> None:
    kernels, layout = named(name), lay_out(code, 0, 2, SMALL)
    run = layout.runs.rows[0 if where == "first" else -1]
    at = run.packed + (0 if where == "first" else packed_bytes(run.length, code.rows) - 1)
    scale, buffer = torch.ones(2, layout.num_units), torch.zeros(layout.numel)
    good = random_codes(code, layout, 0)
    for byte in range(256):
        valid = byte < 243 if code is Code.BASE3 else all((byte >> shift) & 3 < 3 for shift in (0, 2, 4, 6))
        bad = good.clone()
        bad[at] = byte
        assert kernels.mean_shared(buffer, layout.runs, [good, bad], scale[0], code) is valid
        if byte % 16 in (10, 15):
            assert kernels.mean_own(buffer, layout.runs, [bad, good], scale, code) is valid
            assert kernels.sum_levels(layout.runs, [good, bad], code, layout.levels()) is valid
            assert kernels.error(buffer, layout.runs, bad, scale[0], code)[2] is valid


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize("num_payloads", [1, 2, 3, 7, 64, 1000])
def test_mean_of_levels_notices_a_word_above_the_largest(name: str, num_payloads: int) -> None:
    kernels, layout = named(name), lay_out(Code.BASE3, 0, num_payloads)
    largest = (2 * num_payloads + 1) ** level_rows(num_payloads) - 1
    buffer, scale = torch.zeros(layout.numel), torch.ones(layout.num_units)
    clean = random_levels(layout, num_payloads)
    for word, valid in ((largest, True), (largest + 1, False), (2**32 - 1, False)):
        levels = clean.clone()
        at = layout.runs.rows[-1].levels + 28
        levels[at : at + 4] = torch.tensor(list(word.to_bytes(4, "little")), dtype=torch.uint8)
        assert kernels.mean_levels(buffer, layout.runs, levels, num_payloads, scale) is valid


# Bounds and settings


def test_a_table_without_runs_writes_nothing(native: Kernels) -> None:
    empty, buffer, packed = Runs([]), torch.ones(4), torch.full((4,), UNTOUCHED, dtype=torch.uint8)
    keys, scale = np.zeros((0, 2), dtype=np.uint32), torch.ones(1)
    native.ternarize(buffer, empty, keys, scale, scale, Code.BASE3, packed)
    assert native.mean_shared(buffer, empty, [packed], scale, Code.BASE3)
    assert native.sum_levels(empty, [packed], Code.BASE3, packed)
    assert torch.equal(buffer, torch.ones(4))
    assert torch.equal(packed, torch.full((4,), UNTOUCHED, dtype=torch.uint8))


HUGE = 2**63 - 8


@pytest.mark.parametrize(
    "change",
    [
        {"source": -1}, {"source": 49}, {"source": HUGE}, {"length": 161}, {"length": -1}, {"length": HUGE + 7},
        {"offset": -8}, {"offset": 4}, {"offset": 512}, {"offset": HUGE}, {"unit": -1}, {"unit": 1}, {"unit": HUGE},
        {"packed": -32}, {"packed": 1}, {"packed": HUGE},
    ],
    ids=str,
)  # fmt: skip
def test_a_run_outside_its_buffers_is_refused(native: Kernels, change: dict[str, int]) -> None:
    layout = lay_out(Code.BASE3, 64, pieces=[(160,)])
    run = replace(layout.runs.rows[0], source=0, packed=0, levels=0)
    buffer, packed, scale = torch.zeros(160), torch.full((32,), 121, dtype=torch.uint8), torch.ones(3)
    assert native.mean_shared(buffer, Runs([run], 64), [packed], scale, Code.BASE3)
    bad = Runs([replace(run, **change)], 64)
    with pytest.raises(ValueError, match="row 0 of the run table"):
        native.mean_shared(buffer, bad, [packed], scale, Code.BASE3)


@pytest.mark.parametrize("block", [-8, 4, 12])
def test_a_block_that_is_no_multiple_of_eight_is_refused(native: Kernels, block: int) -> None:
    layout = lay_out(Code.BASE3, 0, pieces=[(160,)])
    runs = Runs(layout.runs.rows, block)
    with pytest.raises(ValueError, match=f"block {block} must be a multiple of 8"):
        native.mean_shared(torch.zeros(layout.numel), runs, [layout.packed()], torch.ones(99), Code.BASE3)


def test_native_kernels_refuse_tensors_they_would_misread(native: Kernels) -> None:
    layout = lay_out(Code.BASE3, 0, pieces=[(160,)])
    scale, strided = torch.ones(1), torch.zeros(2 * layout.numel)[::2]
    with pytest.raises(ValueError, match="contiguous CPU tensor"):
        native.mean_shared(strided, layout.runs, [layout.packed()], scale, Code.BASE3)
    with pytest.raises(ValueError, match="contiguous uint8"):
        native.mean_shared(torch.zeros(layout.numel), layout.runs, [layout.packed().char()], scale, Code.BASE3)


def test_set_backend_says_what_it_got_and_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"set_backend\('cuda'\): this machine has .*reference"):
        set_backend("cuda")
    with pytest.raises(ConfigurationError, match=r"threads=0\): threads must be at least 1"):
        set_backend("reference", threads=0)


def test_other_devices_get_the_reference() -> None:
    assert kernels_for(torch.device("meta")).name == "reference"
    assert kernels_for(CPU).name == backend() == backends()[0]


def test_levels_fill_their_word_and_no_more() -> None:
    for num_payloads in range(1, 1000):
        base, rows = 2 * num_payloads + 1, level_rows(num_payloads)
        assert base**rows <= 2**32 < base ** (rows + 1)


def test_layouts_for_these_tests_have_runs_that_start_inside_a_parameter_and_a_block() -> None:
    rows = lay_out(Code.BASE3, 64).runs.rows
    assert any(run.offset % 64 for run in rows)
    assert {run.length for run in rows} >= {0, 1, 7, 8005}
    assert len(PIECES) < len(rows)
