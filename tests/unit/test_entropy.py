"""The entropy coder: native streams equal the reference's bit for bit, come back unchanged, and are near the limit."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_names import named
from streams import (
    ALPHABETS,
    LENGTHS,
    NATIVE,
    TERNARY,
    bits_of,
    decode,
    encode,
    inside,
    pack,
    room_for,
    skewed_symbols,
    spans_of,
    sum_alphabet,
    sum_values,
    ternary_symbols,
    ternary_values,
)
from torch import Tensor

from terngrad.kernels import Kernels, backends, cut_streams, kernels_for, reference
from terngrad.kernels.layout import STREAM_SYMBOLS, Int64Array
from terngrad.kernels.reference.entropy import make_alphabet, read_table, write_table

CPU = torch.device("cpu")
REFERENCE = cast(Kernels, reference)
UNTOUCHED = 0xA5
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35)
MOST_OVER_LIMIT = 1.015


@pytest.fixture(params=NATIVE)
def native(request: pytest.FixtureRequest) -> Kernels:
    return named(request.param)


@pytest.fixture(params=backends())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return named(request.param)


def assert_same_streams(native: Kernels, symbols: Tensor, radix: int, digits: int, *lengths: int) -> None:
    """Encoded alike, and decoded by either from the other's bytes."""
    spans = spans_of(*lengths)
    expected, expected_lengths = encode(REFERENCE, symbols, radix, digits, spans)
    found, found_lengths = encode(native, symbols, radix, digits, spans)
    assert found_lengths.tolist() == expected_lengths.tolist()
    assert torch.equal(found, expected)
    for decoder, payload in ((native, expected), (REFERENCE, found)):
        back = decode(decoder, payload, found_lengths, spans, radix, digits)
        assert back is not None
        assert torch.equal(back, inside(symbols, spans))


# Bit equality


@pytest.mark.parametrize("density", [0.0, 0.001, *DENSITIES, 1.0])
def test_ternary_streams_equal_the_reference_bit_for_bit_in_both_directions(native: Kernels, density: float) -> None:
    assert_same_streams(native, ternary_symbols(room_for(spans_of(*LENGTHS)), density), *TERNARY, *LENGTHS)


@pytest.mark.parametrize("skew", [1.0, 1.5, 4.0, 40.0])
@pytest.mark.parametrize("alphabet", ALPHABETS, ids=str)
def test_streams_of_every_alphabet_equal_the_reference(native: Kernels, alphabet: tuple[int, int], skew: float) -> None:
    symbols = skewed_symbols(room_for(spans_of(*LENGTHS)), *alphabet, skew)
    assert_same_streams(native, symbols, *alphabet, *LENGTHS)


@pytest.mark.parametrize("num_payloads", [1, 2, 3, 4, 7, 8, 16, 127])
def test_streams_of_sums_equal_the_reference(native: Kernels, num_payloads: int) -> None:
    radix, digits = sum_alphabet(num_payloads)
    symbols = pack(sum_values(9000 * digits, num_payloads, 0.1) + num_payloads, radix, digits)
    assert_same_streams(native, symbols, radix, digits, 8000, 0, 91)


def test_short_streams_of_every_length_equal_the_reference(native: Kernels) -> None:
    lengths = list(range(300))
    assert_same_streams(native, ternary_symbols(room_for(spans_of(*lengths)), 0.02), *TERNARY, *lengths)


def test_a_stream_of_the_greatest_length_equals_the_reference(native: Kernels) -> None:
    symbols = ternary_symbols(STREAM_SYMBOLS + 6, 0.1)
    assert_same_streams(native, symbols, *TERNARY, STREAM_SYMBOLS)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("name", NATIVE)
def test_threads_do_not_change_a_bit(name: str, threads: int) -> None:
    lengths = (*LENGTHS, 60_000, 40_000, 3, 90_001)
    symbols = ternary_symbols(room_for(spans_of(*lengths)), 0.07)
    assert_same_streams(named(name, threads), symbols, *TERNARY, *lengths)


def test_symbols_of_unlike_statistics_equal_the_reference(native: Kernels) -> None:
    """Signs that are mostly positive; zeros in clusters; zeros first and then none."""
    clustered = ternary_symbols(5003, 0.3) * 0 + 121
    clustered[1000:1400] = ternary_symbols(400, 0.5)
    halves = torch.cat([torch.full((2500,), 121, dtype=torch.uint8), ternary_symbols(2503, 0.9, 1)])
    for symbols in (ternary_symbols(5003, 0.2, positive=0.95), clustered, halves):
        assert_same_streams(native, symbols, *TERNARY, 4990)


def unlike_streams(count: int, seed: int, times: int) -> tuple[Tensor, Int64Array]:
    """Streams of any length, times a number, and density; some not worth coding."""
    random = np.random.default_rng(seed)
    parts = [
        ternary_symbols(
            times * int(random.choice([0, 5, 90, 800, 801, 3000])), float(random.choice([0.001, 0.1, 0.5, 1.0])), i
        )
        for i in range(count)
    ]
    return torch.cat([*parts, ternary_symbols(3, 0.5)]), spans_of(*map(len, parts), gap=0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NATIVE)
def test_streams_coded_abreast_are_as_alone_however_unlike_they_are(name: str, threads: int) -> None:
    native = named(name, threads)
    for seed in range(20):
        symbols, spans = unlike_streams(1 + seed % 10, seed, 1 if threads == 1 else 7)  # enough for several threads
        together, lengths = encode(native, symbols, *TERNARY, spans)
        alone = [encode(native, symbols, *TERNARY, spans[i : i + 1])[0] for i in range(len(spans))]
        assert torch.equal(together, torch.cat(alone))
        assert lengths.tolist() == list(map(len, alone))
        back = decode(native, together, lengths, spans, *TERNARY)
        assert back is not None
        assert torch.equal(back, inside(symbols, spans))


# Size


def over_limit(kernels: Kernels, values: Tensor, radix: int, digits: int) -> float:
    """Bytes of the streams of levels, four for the length of each included, in units of Shannon's limit."""
    payload, lengths = encode(kernels, pack(values, radix, digits), radix, digits)
    return 8 * (len(payload) + 4 * len(lengths)) / (bits_of(values) * values.numel())


@pytest.mark.parametrize("positive", [0.5, 0.8])
@pytest.mark.parametrize("density", DENSITIES)
def test_ternary_streams_are_near_the_limit(density: float, positive: float) -> None:
    values = ternary_values(1_000_000, density, positive=positive) + 1
    assert 1.0 < over_limit(kernels_for(CPU), values, *TERNARY) < MOST_OVER_LIMIT


@pytest.mark.parametrize("density", [0.01, 0.1, 0.35])
@pytest.mark.parametrize("num_payloads", [2, 3, 4, 8, 16])
def test_streams_of_sums_are_near_the_limit(num_payloads: int, density: float) -> None:
    radix, digits = sum_alphabet(num_payloads)
    values = sum_values(1_000_002 // digits * digits, num_payloads, density) + num_payloads
    assert 1.0 < over_limit(kernels_for(CPU), values, radix, digits) < MOST_OVER_LIMIT


def test_clustered_zeros_take_less_than_the_limit_of_independent_ones() -> None:
    values = ternary_values(1_000_000, 0.6).view(-1, 1000)
    values[torch.rand(1000, generator=torch.Generator().manual_seed(1)) < 0.9] = 0
    assert over_limit(kernels_for(CPU), values.flatten() + 1, *TERNARY) < 0.9


def test_a_table_of_ternary_classes_takes_at_most_24_bytes() -> None:
    alphabet = make_alphabet(*TERNARY)
    assert len(alphabet.class_sizes) == 21
    assert sorted(alphabet.class_sizes.tolist()) == sorted([1, 5, 5, *[10, 20, 10], *[10, 30, 30, 10],
                                                            *[5, 20, 30, 20, 5], *[1, 5, 10, 10, 5, 1]])  # fmt: skip
    assert len(write_table(alphabet, np.ones(243, dtype=np.int64))) == 24


@pytest.mark.parametrize("symbol", [0, 121, 242])
def test_a_stream_of_one_symbol_in_a_class_of_its_own_takes_next_to_nothing(kernels: Kernels, symbol: int) -> None:
    symbols = torch.full((20_000,), symbol, dtype=torch.uint8)
    payload, lengths = encode(kernels, symbols, *TERNARY)
    assert len(payload) < 48
    back = decode(kernels, payload, lengths, cut_streams(0, len(symbols)), *TERNARY)
    assert back is not None
    assert torch.equal(back[: len(symbols)], symbols)


def test_a_stream_of_one_symbol_takes_the_choice_within_its_class(kernels: Kernels) -> None:
    """Here one of five, all but one zeros: log2(5) bits each, because the model has no order within a class."""
    symbols = torch.full((20_000,), 1, dtype=torch.uint8)
    payload, lengths = encode(kernels, symbols, *TERNARY)
    assert len(payload) == pytest.approx(20_000 * np.log2(5) / 8, rel=0.02)
    back = decode(kernels, payload, lengths, cut_streams(0, len(symbols)), *TERNARY)
    assert back is not None
    assert torch.equal(back[: len(symbols)], symbols)


@pytest.mark.parametrize("radix", [2, 243, 256])
def test_every_symbol_can_have_a_stream_to_itself(native: Kernels, radix: int) -> None:
    symbols = torch.arange(radix).repeat_interleave(100).to(torch.uint8)
    spans = np.stack([np.arange(radix) * 100, np.full(radix, 100)], axis=1)
    payload, lengths = encode(native, symbols, radix, 1, spans)
    assert (lengths < 100).all()
    back = decode(native, payload, lengths, spans, radix, 1)
    assert back is not None
    assert torch.equal(back[: len(symbols)], symbols)


def test_all_243_symbols_alike_still_take_less_than_a_byte_each(kernels: Kernels) -> None:
    symbols = torch.arange(243, dtype=torch.uint8).repeat(100)
    payload, lengths = encode(kernels, symbols, *TERNARY)
    assert len(payload) < 0.995 * len(symbols)
    back = decode(kernels, payload, lengths, cut_streams(0, len(symbols)), *TERNARY)
    assert back is not None
    assert torch.equal(back[: len(symbols)], symbols)


@pytest.mark.parametrize("length", [1, 37, 10_000])
def test_what_would_not_become_smaller_is_stored_as_it_is(kernels: Kernels, length: int) -> None:
    symbols = skewed_symbols(length, 256, 1, skew=1)
    payload, lengths = encode(kernels, symbols, 256, 1)
    assert lengths.tolist() == [length]
    assert torch.equal(payload, symbols)


def test_encoding_writes_its_streams_and_nothing_behind_the_bound(native: Kernels) -> None:
    spans = spans_of(100, 300, 5000)
    symbols = ternary_symbols(room_for(spans), 0.5)
    target = torch.full((5400 + 50,), UNTOUCHED, dtype=torch.uint8)
    native.entropy_encode(symbols, spans, *TERNARY, target)
    assert (target[5400:] == UNTOUCHED).all()


# The model


def symbol_weights() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 255), min_size=2, max_size=256)


@given(symbol_weights(), st.integers(0, 2**32))
def test_frequencies_of_any_table_sum_to_two_to_the_fifteenth(weights: list[int], present: int) -> None:
    there = [(present >> c % 32) & 1 == 1 or c < 2 for c in range(len(weights))]
    bitmap = np.packbits(np.array(there, dtype=np.uint8), bitorder="little")
    chosen = np.array([w for w, there in zip(weights, there, strict=True) if there], dtype=np.uint8)
    found = read_table(make_alphabet(len(weights), 1), np.concatenate([bitmap, chosen]))
    assert found is not None
    frequencies, length = found
    assert length == len(bitmap) + len(chosen)
    assert frequencies.sum() == 2**15
    assert ((frequencies > 0) == there).all()
    assert frequencies.max() < 2**15


def test_symbols_of_a_class_have_the_same_digits() -> None:
    for radix, digits in ALPHABETS:
        alphabet = make_alphabet(radix, digits)
        names = [
            tuple(sorted(s // radix**k % radix for k in range(digits))) for s in range(alphabet.size)
        ]  # fmt: skip
        assert len(set(zip(names, alphabet.class_of.tolist(), strict=True))) == len(set(names))
        assert len(set(names)) == len(alphabet.class_sizes)
        in_order = sorted(set(names))
        assert [in_order[c] for c in alphabet.class_of] == names


# What no encoder writes


@pytest.fixture(scope="module")
def stream() -> tuple[Tensor, int]:
    """A short stream and how many symbols it has."""
    symbols = ternary_symbols(150, 0.1)
    return encode(REFERENCE, symbols, *TERNARY)[0], len(symbols)


def accepts(kernels: Kernels, payload: Tensor, num_symbols: int, length: int | None = None) -> bool:
    lengths = np.array([len(payload) if length is None else length], dtype=np.int64)
    return decode(kernels, payload, lengths, spans_of(num_symbols, gap=0), *TERNARY) is not None


def changed(payload: Tensor, at: int, byte: int) -> Tensor:
    altered = payload.clone()
    altered[at] = byte
    return altered


def test_every_change_of_one_byte_gives_what_the_reference_gives(native: Kernels, stream: tuple[Tensor, int]) -> None:
    payload, num_symbols = stream
    spans, lengths = spans_of(num_symbols, gap=0), np.array([len(payload)], dtype=np.int64)
    num_refused = 0
    for at in range(len(payload)):
        for flip in (1, 0x80, 0xFF):
            altered = changed(payload, at, int(payload[at]) ^ flip)
            expected = decode(REFERENCE, altered, lengths, spans, *TERNARY)
            found = decode(native, altered, lengths, spans, *TERNARY)
            assert (found is None) == (expected is None)
            assert found is None or expected is None or torch.equal(found, expected)
            num_refused += found is None
    assert num_refused > 2.9 * len(payload)


@pytest.mark.parametrize("broken", range(6))
def test_a_changed_stream_among_good_ones_gives_what_the_reference_gives(native: Kernels, broken: int) -> None:
    spans = spans_of(700, 300, 700, 40, 700, 500)
    payload, lengths = encode(REFERENCE, ternary_symbols(room_for(spans), 0.2), *TERNARY, spans)
    random, end = np.random.default_rng(broken), int(lengths[: broken + 1].sum())
    for at in random.integers(end - lengths[broken], end, 20).tolist():
        altered = changed(payload, at, int(payload[at]) ^ int(random.integers(1, 256)))
        expected = decode(REFERENCE, altered, lengths, spans, *TERNARY)
        found = decode(native, altered, lengths, spans, *TERNARY)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or torch.equal(found, expected)


def test_streams_with_bytes_missing_or_left_over_are_refused(kernels: Kernels, stream: tuple[Tensor, int]) -> None:
    payload, num_symbols = stream
    assert accepts(kernels, payload, num_symbols)
    for count in range(len(payload)):
        assert not accepts(kernels, payload[:count].clone(), num_symbols)
    for count in range(1, 9):
        assert not accepts(kernels, torch.cat([payload, payload[:count]]), num_symbols)


def test_a_stream_read_as_more_or_fewer_symbols_is_refused(kernels: Kernels, stream: tuple[Tensor, int]) -> None:
    payload, num_symbols = stream
    for other in (0, 1, len(payload), num_symbols - 1, num_symbols + 1, num_symbols + 8, 2 * num_symbols):
        assert not accepts(kernels, payload, other)


def test_lengths_that_do_not_fit_are_refused(kernels: Kernels, stream: tuple[Tensor, int]) -> None:
    payload, num_symbols = stream
    for length in (-1, -(2**63), len(payload) + 1, num_symbols + 1, 2**63 - 1):
        assert not accepts(kernels, payload, num_symbols, length)
    spans = spans_of(num_symbols, num_symbols)
    lengths = np.array([len(payload), 1], dtype=np.int64)
    assert decode(kernels, payload, lengths, spans, *TERNARY) is None


def test_tables_that_no_encoder_writes_are_refused(kernels: Kernels, stream: tuple[Tensor, int]) -> None:
    payload, num_symbols = stream
    states_and_words = payload[read_table(make_alphabet(*TERNARY), payload.numpy())[1] :]  # type: ignore[index]
    nothing, single, beyond = [0, 0, 0], [1, 0, 0, 240], [255, 255, 255, *24 * [9]]
    for table in (nothing, single, beyond):
        altered = torch.cat([torch.tensor(table, dtype=torch.uint8), states_and_words])
        assert not accepts(kernels, altered, num_symbols)


def test_symbols_outside_the_alphabet_are_refused(kernels: Kernels) -> None:
    symbols = torch.arange(20, dtype=torch.uint8) + 223
    assert accepts(kernels, symbols, 20)
    assert not accepts(kernels, symbols + 1, 20)
    with pytest.raises(ValueError, match=r"a symbol is outside 0\.\.242"):
        encode(kernels, symbols + 1, *TERNARY)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused_or_harmless_as_by_the_reference(native: Kernels, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 400, 6)
    spans = spans_of(*(lengths + random.integers(0, 300, 6)).tolist())
    payload = torch.from_numpy(random.integers(0, random.choice([2, 60, 256]), lengths.sum(), dtype=np.uint8))
    for alphabet in (TERNARY, (17, 1), (2, 1)):
        expected = decode(REFERENCE, payload, lengths, spans, *alphabet)
        found = decode(native, payload, lengths, spans, *alphabet)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or torch.equal(found, expected)


# Bounds


@pytest.mark.parametrize(
    "spans",
    [[(-1, 5)], [(0, 101)], [(100, 1)], [(0, 5), (99, 2)], [(0, -1)], [(2**63 - 1, 1)], [(0, 2**63 - 1)]],
    ids=str,
)
def test_spans_outside_the_symbols_are_refused(kernels: Kernels, spans: list[tuple[int, int]]) -> None:
    symbols, table = torch.full((100,), 121, dtype=torch.uint8), np.array(spans, dtype=np.int64)
    with pytest.raises(ValueError, match="symbols"):
        kernels.entropy_encode(symbols, table, *TERNARY, torch.zeros(200, dtype=torch.uint8))
    with pytest.raises(ValueError, match="symbols"):
        kernels.entropy_decode(symbols, np.full(len(spans), 5, dtype=np.int64), table, *TERNARY, symbols)


def test_a_stream_that_is_too_long_and_a_target_that_is_too_short_are_refused(kernels: Kernels) -> None:
    symbols = torch.full((STREAM_SYMBOLS + 1,), 121, dtype=torch.uint8)
    with pytest.raises(ValueError, match="262145"):
        kernels.entropy_encode(symbols, np.array([[0, STREAM_SYMBOLS + 1]]), *TERNARY, symbols.clone())
    with pytest.raises(ValueError, match="room for 49 bytes, need 50"):
        kernels.entropy_encode(symbols, np.array([[0, 50]]), *TERNARY, torch.zeros(49, dtype=torch.uint8))


@pytest.mark.parametrize("alphabet", [(1, 5), (0, 1), (-3, 2), (3, 0), (3, -1), (3, 6), (257, 1), (2, 9), (16, 31)])
def test_alphabets_that_do_not_fit_a_byte_are_refused(kernels: Kernels, alphabet: tuple[int, int]) -> None:
    symbols = torch.zeros(10, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"need 2\.\.256"):
        kernels.entropy_encode(symbols, cut_streams(0, 10), *alphabet, symbols.clone())


def test_streams_cover_their_symbols_and_none_is_too_long() -> None:
    for first, length in ((0, 0), (3, 1), (0, STREAM_SYMBOLS), (5, STREAM_SYMBOLS + 1), (0, 10 * STREAM_SYMBOLS - 3)):
        spans = cut_streams(first, length)
        assert spans.shape[1] == 2
        assert spans[:, 1].sum() == length
        assert spans[:, 1].max(initial=0) <= STREAM_SYMBOLS
        assert spans[:, 1].min(initial=STREAM_SYMBOLS) >= length // max(len(spans), 1)
        assert spans[:, 0].tolist() == (first + np.cumsum([0, *spans[:, 1]])[:-1]).tolist()
