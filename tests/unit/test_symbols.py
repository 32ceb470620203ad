"""Sums as symbols for the entropy coder: every backend as the reference, and the same averages as without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_names import named
from layouts import DTYPES, PIECES, Layout, gradient, lay_out, random_codes, same_bits
from streams import NATIVE
from torch import Tensor

from terngrad.kernels import Code, Kernels, Run, Runs, backends, reference, symbol_bytes, symbol_digits

SMALL = ((1,), (8, 160, 161), (3,))
LARGE = ((8, 120000, 90003), (5,), (200003,))
PAYLOADS = [1, 2, 3, 4, 7, 8, 64, 127]


@pytest.fixture(params=NATIVE)
def native(request: pytest.FixtureRequest) -> Kernels:
    return named(request.param)


@pytest.fixture(params=list(Code), ids=lambda code: code.name.lower())
def code(request: pytest.FixtureRequest) -> Code:
    return Code(request.param)


def lay_out_symbols(code: Code, block: int, num_payloads: int) -> Layout:
    """A layout whose runs have room for symbols where the levels of the sum would be."""
    return with_symbols(lay_out(code, block, num_payloads, PIECES if num_payloads < 10 else SMALL), num_payloads)


def with_symbols(layout: Layout, num_payloads: int) -> Layout:
    rows: list[Run] = []
    at = 3
    for run in layout.runs.rows:
        rows.append(replace(run, levels=at))
        at += symbol_bytes(run.length, symbol_digits(num_payloads)) + 3
    return replace(layout, runs=Runs(rows, layout.runs.block), levels_nbytes=at)


def random_payloads(code: Code, layout: Layout, num_payloads: int) -> list[Tensor]:
    some = [random_codes(code, layout, seed) for seed in range(min(num_payloads, 5))]
    return [some[i % len(some)] for i in range(num_payloads)]


@pytest.mark.parametrize("num_payloads", PAYLOADS)
def test_symbols_of_a_sum_equal_the_reference(native: Kernels, code: Code, num_payloads: int) -> None:
    layout = lay_out_symbols(code, 0, num_payloads)
    payloads = random_payloads(code, layout, num_payloads)
    expected, found = layout.levels(), layout.levels()
    assert reference.sum_symbols(layout.runs, payloads, code, expected)
    assert native.sum_symbols(layout.runs, payloads, code, found)
    assert torch.equal(found, expected)


def random_symbols(layout: Layout, num_payloads: int) -> Tensor:
    """Arbitrary symbols of the alphabet, padding included."""
    size = (2 * num_payloads + 1) ** symbol_digits(num_payloads)
    return torch.randint(size, (layout.levels_nbytes,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("block", "num_payloads"), [(0, 1), (8, 2), (64, 3), (512, 7), (0, 8), (8, 127), (64, 5)])
def test_mean_of_symbols_equals_the_reference(
    native: Kernels, dtype: torch.dtype, block: int, num_payloads: int
) -> None:
    layout = lay_out_symbols(Code.BASE3, block, num_payloads)
    symbols, scale = random_symbols(layout, num_payloads), torch.rand(layout.num_units)
    expected = gradient(layout.numel, dtype)
    found = expected.clone()
    assert reference.mean_symbols(expected, layout.runs, symbols, num_payloads, scale)
    assert native.mean_symbols(found, layout.runs, symbols, num_payloads, scale)
    assert same_bits(found, expected)


@pytest.mark.parametrize("num_payloads", PAYLOADS)
@pytest.mark.parametrize("name", backends())
def test_mean_through_symbols_equals_the_mean_of_the_codes(name: str, code: Code, num_payloads: int) -> None:
    kernels, layout = named(name), lay_out_symbols(code, 64, num_payloads)
    payloads, scale = random_payloads(code, layout, num_payloads), torch.rand(layout.num_units)
    direct, through, symbols = torch.zeros(layout.numel), torch.zeros(layout.numel), layout.levels()
    assert kernels.mean_shared(direct, layout.runs, payloads, scale, code)
    assert kernels.sum_symbols(layout.runs, payloads, code, symbols)
    assert kernels.mean_symbols(through, layout.runs, symbols, num_payloads, scale)
    assert same_bits(through, direct)


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize("num_payloads", PAYLOADS)
def test_mean_of_symbols_notices_one_outside_the_alphabet(name: str, num_payloads: int) -> None:
    kernels, layout = named(name), lay_out_symbols(Code.BASE3, 0, num_payloads)
    size = (2 * num_payloads + 1) ** symbol_digits(num_payloads)
    buffer, scale = torch.zeros(layout.numel), torch.ones(layout.num_units)
    run = layout.runs.rows[-1]
    for at in (run.levels, run.levels + symbol_bytes(run.length, symbol_digits(num_payloads)) - 1):
        for symbol in (0, size - 1, size, 255):
            symbols = random_symbols(layout, num_payloads)
            symbols[at] = symbol
            good = kernels.mean_symbols(buffer, layout.runs, symbols, num_payloads, scale)
            assert good is (symbol < size)


@pytest.mark.parametrize("name", backends())
def test_sum_of_symbols_notices_a_code_that_no_encoder_writes(name: str, code: Code) -> None:
    kernels, layout = named(name), lay_out_symbols(code, 0, 2)
    good = random_codes(code, layout, 0)
    bad = good.clone()
    bad[layout.runs.rows[-1].packed] = 255
    assert kernels.sum_symbols(layout.runs, [good, good], code, layout.levels())
    assert not kernels.sum_symbols(layout.runs, [good, bad], code, layout.levels())


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("num_payloads", [2, 3, 8])
@pytest.mark.parametrize("name", NATIVE)
def test_threads_do_not_change_a_symbol_or_a_mean(name: str, num_payloads: int, threads: int, code: Code) -> None:
    several, layout = named(name, threads), with_symbols(lay_out(code, 512, num_payloads, LARGE), num_payloads)
    payloads, scale = random_payloads(code, layout, num_payloads), torch.rand(layout.num_units)
    results = []
    for kernels in (reference, several):
        buffer, symbols = torch.zeros(layout.numel), layout.levels()
        assert kernels.sum_symbols(layout.runs, payloads, code, symbols)
        assert kernels.mean_symbols(buffer, layout.runs, symbols, num_payloads, scale)
        results.append((buffer, symbols))
    for expected, found in zip(*results, strict=True):
        assert same_bits(found, expected)


@pytest.mark.parametrize("name", backends())
def test_more_payloads_than_a_symbol_can_count_are_refused(name: str) -> None:
    kernels, layout = named(name), lay_out_symbols(Code.BASE3, 0, 127)
    payload, symbols, scale = random_codes(Code.BASE3, layout, 0), layout.levels(), torch.ones(layout.num_units)
    with pytest.raises(ValueError, match=r"symbols of 128 payloads: need 1\.\.127"):
        kernels.sum_symbols(layout.runs, [payload] * 128, Code.BASE3, symbols)
    with pytest.raises(ValueError, match=r"symbols of 0 payloads: need 1\.\.127"):
        kernels.mean_symbols(torch.zeros(layout.numel), layout.runs, symbols, 0, scale)


def test_symbols_fill_their_byte_and_no_more() -> None:
    for num_payloads in range(1, 128):
        base, digits = 2 * num_payloads + 1, symbol_digits(num_payloads)
        assert base**digits <= 256 < base ** (digits + 1)
    assert [symbol_digits(n) for n in (1, 2, 3, 7, 8, 127)] == [5, 3, 2, 2, 1, 1]
