"""Random bytes and random, often wrong, run tables for every native kernel; fuzz_sparse.py has the sparse ones.

    python fuzz_native.py <_native.so> <examples>     prints how many calls each kernel accepted and refused
    python fuzz_native.py <_native.so> over-read      reads past a buffer, which a sanitizer must stop

test_asan.py runs it on the core built with AddressSanitizer. The kernels may be told any bytes, sizes and tables, as
long as buffers are as long as they are said to be: each is an allocation of exactly that size, so a byte read or
written outside it ends the process. Only numpy, because torch takes long to start under the sanitizer.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from fuzz_sparse import SparseFuzzer, sparse_cases
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

LARGEST = 2**63 - 1
ITEM_BYTES = (4, 2, 2)
SOURCE, LENGTH, OFFSET, UNIT, PACKED, LEVELS = range(6)


def load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_file_location("_native", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def code_rows(code: int) -> int:
    return 20 if code else 16


def level_rows(num_payloads: int) -> int:
    return max(k for k in range(33) if (2 * num_payloads + 1) ** k <= 2**32)


def packed_bytes(length: int, rows: int) -> int:
    return -(-length // (8 * rows)) * 32


def symbol_bytes(length: int, num_payloads: int) -> int:
    digits = max(k for k in range(9) if (2 * num_payloads + 1) ** k <= 256)
    return -(-length // (8 * digits)) * 8


def last_unit(row: list[int], block: int) -> int:
    return row[UNIT] + ((row[OFFSET] + row[LENGTH] - 1) // block if row[LENGTH] > 0 and block else 0)


@dataclass
class Case:
    """A table of runs and what it may refer to. `slack` is how much longer than needed everything is."""

    isa: str
    element: int
    code: int
    block: int
    num_payloads: int
    threads: int
    rows: list[list[int]]
    slack: int
    seed: int
    wrong: list[tuple[int, int, int]]  # row, column and the value that is put there after the sizes are settled

    def __post_init__(self) -> None:
        rows, level = code_rows(self.code), level_rows(self.num_payloads)
        self.numel = self._need(lambda row: row[SOURCE] + row[LENGTH])
        self.num_units = self._need(lambda row: last_unit(row, self.block) + 1)
        self.num_bytes = self._need(lambda row: row[PACKED] + packed_bytes(row[LENGTH], rows))
        self.num_level_bytes = self._need(lambda row: row[LEVELS] + packed_bytes(row[LENGTH], level))
        self.num_symbols = self._need(lambda row: row[LEVELS] + symbol_bytes(row[LENGTH], self.num_payloads))
        for row, column, value in self.wrong if self.rows else []:
            self.rows[row % len(self.rows)][column] = value
        self.random = np.random.default_rng(self.seed)

    def _need(self, size: Callable[[list[int]], int]) -> int:
        return max(map(size, self.rows), default=0) + self.slack

    @property
    def table(self) -> npt.NDArray[np.int64]:
        return np.array(self.rows, dtype=np.int64).reshape(-1, 6)

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """Random; in half of the cases codes that an encoder could have written."""
        return self.random.integers(0, self.random.choice([86, 256]), count, dtype=np.uint8)

    def elements(self) -> npt.NDArray[np.uint8]:
        return self.bytes(self.numel * ITEM_BYTES[self.element])

    def floats(self, count: int) -> npt.NDArray[np.float32]:
        return self.random.random(count, dtype=np.float32)

    def is_valid(self, *, codes: bool, levels: bool, buffer: bool = True, symbols: bool = False) -> bool:
        """Whether every run lies inside what the kernel uses; in exact integers, which do not overflow."""
        return self.block >= 0 and self.block % 8 == 0 and all(
            self._fits(row, codes, levels, buffer, symbols) for row in self.rows
        )  # fmt: skip

    def _fits(self, row: list[int], codes: bool, levels: bool, buffer: bool, symbols: bool) -> bool:
        source, length, offset, unit, packed, level = row
        room = [(source, length, self.numel if buffer else LARGEST)]
        room.append((offset, length, LARGEST))
        block = self.block if buffer else 0
        room.append((unit, last_unit(row, block) - unit + 1, self.num_units if buffer else LARGEST))
        if codes:
            room.append((packed, packed_bytes(length, code_rows(self.code)), self.num_bytes))
        if levels:
            room.append((level, packed_bytes(length, level_rows(self.num_payloads)), self.num_level_bytes))
        if symbols:
            room.append((level, symbol_bytes(length, self.num_payloads), self.num_symbols))
        return offset % 8 == 0 and all(a >= 0 and count >= 0 and a + count <= end for a, count, end in room)


extreme = st.sampled_from([-1, -8, LARGEST, LARGEST - 7, -LARGEST - 1, LARGEST // 2, 2**32, 2**62])
integer = st.integers(-8, 600) | extreme | st.integers(-LARGEST - 1, LARGEST)
length = st.integers(0, 30) | st.integers(0, 700) | st.sampled_from([3840, 3841, 8000, 45_000])
eighth = st.integers(0, 100).map(lambda n: 8 * n)
run = st.tuples(st.integers(0, 40), length, eighth, st.integers(0, 3), st.integers(0, 70), st.integers(0, 70)).map(list)


def cases(isas: list[str]) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        isa=st.sampled_from(isas),
        element=st.integers(0, 2),
        code=st.integers(0, 1),
        block=st.sampled_from([0, 8, 64, 512]) | st.integers(0, 200).map(lambda n: 8 * n),
        num_payloads=st.integers(1, 5) | st.sampled_from([7, 64]),
        threads=st.integers(-1, 4),
        rows=st.integers(0, 9).flatmap(lambda n: st.lists(run, min_size=min(n, 1), max_size=4)),
        slack=st.sampled_from([0, 0, 0, 1]),
        seed=st.integers(0, 2**32),
        wrong=st.just([]) | st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), integer), min_size=1, max_size=3),
    )


@dataclass
class Streams:
    """Symbols cut into streams; `wrong` spans and `slack` in the target, then `changes` of bytes and of lengths."""

    isa: str
    alphabet: tuple[int, int]
    threads: int
    rows: list[list[int]]  # symbols between it and the stream before, and symbols of the stream
    skew: float
    largest: int  # symbols above the alphabet's are put there
    slack: int
    seed: int
    wrong: list[tuple[int, int, int]]
    changes: list[tuple[int, int]]
    lengths: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        gaps, sizes = np.array(self.rows, dtype=np.int64).reshape(-1, 2).T
        first = np.cumsum(gaps + sizes) - sizes
        self.right_spans = np.stack([first, sizes], axis=1)
        self.num_symbols = int((gaps + sizes).sum())
        self.spans = self.right_spans.copy()
        for row, column, value in self.wrong if len(self.rows) else []:
            self.spans[row % len(self.rows), column % 2] = value
        self.size = self.alphabet[0] ** self.alphabet[1]
        draws = self.random.random(self.num_symbols) ** self.skew
        self.symbols = (draws * max(self.size, self.largest)).astype(np.uint8)
        self.target = np.zeros(max(0, int(sizes.sum()) + self.slack), np.uint8)

    def spans_fit(self) -> bool:
        return all(a >= 0 and 0 <= n <= 2**18 and a + n <= self.num_symbols for a, n in self.spans.tolist())

    def symbols_fit(self) -> bool:
        return all((self.symbols[a : a + n] < self.size).all() for a, n in self.spans.tolist())


alphabet = st.sampled_from([(3, 5), (5, 3), (9, 2), (15, 2), (17, 1), (255, 1), (256, 1), (2, 8), (2, 1)])
stream_length = st.integers(0, 90) | st.integers(0, 900) | st.sampled_from([2048, 20_000])


def streams(isas: list[str], changes: int = 0) -> st.SearchStrategy[Streams]:
    return st.builds(
        Streams,
        isa=st.sampled_from(isas),
        alphabet=alphabet,
        threads=st.integers(-1, 4),
        rows=st.lists(st.tuples(st.integers(0, 5), stream_length).map(list), max_size=5),
        skew=st.sampled_from([1.0, 2.0, 8.0, 50.0, 1000.0]),
        largest=st.sampled_from([0, 0, 0, 256]),
        slack=st.sampled_from([0, 0, 0, 0, -1, 1]),
        seed=st.integers(0, 2**32),
        wrong=st.just([]) | st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), integer), max_size=2),
        changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=changes),
        lengths=st.just([]) | st.lists(st.tuples(st.integers(0, 4), integer), max_size=changes),
    )


class Fuzzer:
    """Calls kernels and counts; a kernel must refuse exactly the tables that do not fit."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.tally: Counter[str] = Counter()

    def call(self, name: str, valid: bool, *arguments: object) -> None:
        try:
            getattr(self.native, name)(*arguments)
            refused = False
        except ValueError:
            refused = True
        assert refused is not valid, f"{name} {'refused' if refused else 'accepted'} {arguments}"
        self.tally[f"{name} {'refused' if refused else 'accepted'}"] += 1

    def statistics(self, case: Case) -> None:
        spans = np.ascontiguousarray(case.table[:, :2])
        valid = all(a >= 0 and n >= 0 and a + n <= case.numel for a, n in spans.tolist())
        values, count = case.elements(), len(spans)
        outputs = np.empty(count, np.float32), np.empty(count), np.empty(count)
        self.call("statistics", valid, case.isa, values.ctypes.data, case.numel, case.element, spans, *outputs,
                  case.threads)  # fmt: skip

    def ternarize(self, case: Case) -> None:
        values, packed = case.elements(), case.bytes(case.num_bytes)
        keys = case.random.integers(0, 2**32, (len(case.rows), 2), dtype=np.uint32)
        self.call("ternarize", case.is_valid(codes=True, levels=False), case.isa, values.ctypes.data, case.numel,
                  case.element, case.code, case.table, case.block, keys, case.floats(case.num_units),
                  case.floats(case.num_units), packed.ctypes.data, case.num_bytes, case.threads)  # fmt: skip

    def means(self, case: Case) -> None:
        values, payloads = case.elements(), [case.bytes(case.num_bytes) for _ in range(case.num_payloads)]
        addresses = [payload.ctypes.data for payload in payloads]
        for name, num_scalers in (("mean_shared", 1), ("mean_own", case.num_payloads)):
            self.call(name, case.is_valid(codes=True, levels=False), case.isa, values.ctypes.data, case.numel,
                      case.element, case.code, case.table, case.block, addresses, case.num_bytes,
                      case.floats(case.num_units * num_scalers), case.threads)  # fmt: skip

    def sum_levels(self, case: Case) -> None:
        payloads = [case.bytes(case.num_bytes) for _ in range(case.num_payloads)]
        levels = case.bytes(case.num_level_bytes)
        valid = case.is_valid(codes=True, levels=True, buffer=False)
        self.call("sum_levels", valid, case.isa, case.code, case.table, [p.ctypes.data for p in payloads],
                  case.num_bytes, levels.ctypes.data, case.num_level_bytes, case.threads)  # fmt: skip

    def mean_levels(self, case: Case) -> None:
        values, levels = case.elements(), case.bytes(case.num_level_bytes)
        self.call("mean_levels", case.is_valid(codes=False, levels=True), case.isa, values.ctypes.data, case.numel,
                  case.element, case.table, case.block, case.num_payloads, levels.ctypes.data, case.num_level_bytes,
                  case.floats(case.num_units), case.threads)  # fmt: skip

    def sum_symbols(self, case: Case) -> None:
        payloads = [case.bytes(case.num_bytes) for _ in range(case.num_payloads)]
        symbols = case.bytes(case.num_symbols)
        valid = case.is_valid(codes=True, levels=False, buffer=False, symbols=True)
        self.call("sum_symbols", valid, case.isa, case.code, case.table, [p.ctypes.data for p in payloads],
                  case.num_bytes, symbols.ctypes.data, case.num_symbols, case.threads)  # fmt: skip

    def mean_symbols(self, case: Case) -> None:
        values, symbols = case.elements(), case.bytes(case.num_symbols)
        valid = case.is_valid(codes=False, levels=False, symbols=True)
        self.call("mean_symbols", valid, case.isa, values.ctypes.data, case.numel, case.element, case.table, case.block,
                  case.num_payloads, symbols.ctypes.data, case.num_symbols, case.floats(case.num_units),
                  case.threads)  # fmt: skip

    def entropy_encode(self, case: Streams) -> None:
        valid = case.spans_fit() and case.symbols_fit() and case.spans[:, 1].sum() <= len(case.target)
        self.call("entropy_encode", valid, case.isa, *case.alphabet, case.symbols.ctypes.data, case.num_symbols,
                  case.spans, case.target.ctypes.data, len(case.target), np.empty(len(case.rows), np.int64),
                  case.threads)  # fmt: skip

    def entropy_decode(self, case: Streams) -> None:
        """Streams that were encoded, with some bytes and lengths changed."""
        symbols, lengths = case.symbols % np.int64(case.size), np.empty(len(case.rows), np.int64)
        symbols = symbols.astype(np.uint8)
        target = np.zeros(case.num_symbols, np.uint8)
        self.native.entropy_encode(
            case.isa, *case.alphabet, symbols.ctypes.data, case.num_symbols, case.right_spans, target.ctypes.data,
            len(target), lengths, 1,
        )  # fmt: skip
        payload = target[: lengths.sum()].copy()
        for at, byte in case.changes if len(payload) else []:
            payload[at % len(payload)] = byte
        for row, length in case.lengths if len(lengths) else []:
            lengths[row % len(lengths)] = length
        self.decode(case, payload, lengths, symbols)

    def entropy_decode_noise(self, case: Streams) -> None:
        """Random bytes, few of which are tables."""
        lengths = self.random_lengths(case)
        payload = case.random.integers(0, case.random.choice([2, 86, 256]), lengths.sum(), dtype=np.uint8)
        self.decode(case, payload, lengths, None)

    def random_lengths(self, case: Streams) -> npt.NDArray[np.int64]:
        return case.random.integers(0, case.right_spans[:, 1] + 1) if len(case.rows) else np.zeros(0, np.int64)

    def decode(self, case: Streams, payload: Any, lengths: Any, symbols: Any) -> None:
        found = np.zeros(case.num_symbols, np.uint8)
        arguments = (case.isa, *case.alphabet, payload.ctypes.data, len(payload), lengths, case.spans,
                     found.ctypes.data, case.num_symbols, case.threads)  # fmt: skip
        self.call("entropy_decode", case.spans_fit(), *arguments)
        if case.spans_fit() and symbols is not None:
            good = self.native.entropy_decode(*arguments)
            self.tally[f"streams {'good' if good else 'bad'}"] += 1
            if not case.changes and not case.lengths and (case.spans == case.right_spans).all():
                assert good
                assert all((found[a : a + n] == symbols[a : a + n]).all() for a, n in case.spans.tolist())

    def error(self, case: Case) -> None:
        values, packed = case.elements(), case.bytes(case.num_bytes)
        outputs = np.empty(len(case.rows), np.int64), np.empty(len(case.rows))
        self.call("error", case.is_valid(codes=True, levels=False), case.isa, values.ctypes.data, case.numel,
                  case.element, case.code, case.table, case.block, packed.ctypes.data, case.num_bytes,
                  case.floats(case.num_units), *outputs, case.threads)  # fmt: skip

    def other_arguments(self, isa: str) -> None:
        """Arguments besides the table that must be refused."""
        values, packed, scale = np.zeros(160, np.float32), np.full(32, 121, np.uint8), np.ones(1, np.float32)
        table = np.array([[0, 160, 0, 0, 0, 0]], dtype=np.int64)
        keys, nothing = np.zeros((1, 2), np.uint32), np.empty(0)
        at, codes = values.ctypes.data, packed.ctypes.data
        for valid, which, element, code, block, count in (
            (True, isa, 0, 1, 0, 1), (False, "sse9", 0, 1, 0, 1), (False, isa, 3, 1, 0, 1), (False, isa, -1, 1, 0, 1),
            (False, isa, 0, 2, 0, 1), (False, isa, 0, 1, -8, 1), (False, isa, 0, 1, 12, 1), (False, isa, 0, 1, 0, 0),
        ):  # fmt: skip
            self.call("mean_shared", valid, which, at, 160, element, code, table, block, [codes] * count, 32, scale, 1)
        for count in (0, -1, 32768, 2**31 - 1):
            self.call("mean_levels", False, isa, at, 160, 0, table, 0, count, codes, 32, scale, 1)
        for count in (0, -1, 128, 2**31 - 1):
            self.call("mean_symbols", False, isa, at, 160, 0, table, 0, count, codes, 32, scale, 1)
        spans, lengths = np.array([[0, 32]], dtype=np.int64), np.full(1, 32, np.int64)
        coded, room = np.zeros(32, np.uint8), np.zeros(32, np.uint8)
        for valid, radix, digits, known in (
            (True, 3, 5, lengths), (False, 3, 6, lengths), (False, 1, 5, lengths), (False, 257, 1, lengths),
            (False, -3, 2, lengths), (False, 3, 0, lengths), (False, 2, 2**31 - 1, lengths), (False, 3, 5, lengths[:0]),
        ):  # fmt: skip
            self.call("entropy_encode", valid, isa, radix, digits, codes, 32, spans, coded.ctypes.data, 32, known, 1)
            self.call("entropy_decode", valid, isa, radix, digits, codes, 32, known, spans, room.ctypes.data, 32, 1)
        self.call("ternarize", False, isa, at, 160, 0, 1, table, 0, keys[:0], scale, scale, codes, 32, 1)
        self.call("ternarize", False, isa, at, 160, 0, 1, table, 0, keys, scale, scale[:0], codes, 32, 1)
        self.call("error", False, isa, at, 160, 0, 1, table, 0, codes, 32, scale, np.empty(0, np.int64), nothing, 1)
        self.call("statistics", False, isa, at, 160, 0, np.ascontiguousarray(table[:, :2]), scale[:0], nothing,
                  nothing, 1)  # fmt: skip


def fuzz(native: Any, num_examples: int) -> Counter[str]:
    fuzzer = Fuzzer(native)
    sparse = SparseFuzzer(fuzzer.call)
    isas: list[str] = native.available()
    checks = list(HealthCheck)
    limits = settings(max_examples=num_examples, deadline=None, database=None, suppress_health_check=checks)
    for kernel in (
        fuzzer.statistics, fuzzer.ternarize, fuzzer.means, fuzzer.sum_levels, fuzzer.mean_levels, fuzzer.sum_symbols,
        fuzzer.mean_symbols, fuzzer.error,
    ):  # fmt: skip
        seed(0)(limits(given(cases(isas))(kernel)))()
    for sparse_kernel, wrong in sparse.kernels:
        seed(0)(limits(given(sparse_cases(isas, wrong))(sparse_kernel)))()
    for coder, changes in (
        (fuzzer.entropy_encode, 0), (fuzzer.entropy_decode, 4), (fuzzer.entropy_decode_noise, 0),
    ):  # fmt: skip
        seed(0)(limits(given(streams(isas, changes))(coder)))()
    for isa in isas:
        fuzzer.other_arguments(isa)
        sparse.other_arguments(isa)
    return fuzzer.tally


def over_read(native: Any) -> None:
    """Announces one element more than there is."""
    values, span = np.zeros(99, np.float32), np.array([[0, 100]], dtype=np.int64)
    outputs = np.empty(1, np.float32), np.empty(1), np.empty(1)
    native.statistics(native.available()[0], values.ctypes.data, 100, 0, span, *outputs, 1)


if __name__ == "__main__":
    if sys.argv[2] == "over-read":
        over_read(load(sys.argv[1]))
    else:
        print(json.dumps(fuzz(load(sys.argv[1]), int(sys.argv[2]))))
