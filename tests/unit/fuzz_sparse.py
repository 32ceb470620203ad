"""Random and often wrong segments, entries and streams for the native kernels of sparse gradients.

fuzz_native.py runs it, on the core built with AddressSanitizer. Every array is an allocation of exactly its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

LARGEST = 2**63 - 1
ITEM_BYTES = (4, 2, 2)
MOST_POSITIONS = 2**48

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Call = Callable[..., Any]


def num_tiles(lengths: list[int]) -> int:
    return sum(-(-length // 64) for length in lengths)


def addresses(arrays: list[Floats]) -> Int64s:
    return np.array([(array.ctypes.data, array.size) for array in arrays], dtype=np.int64).reshape(-1, 2)


@dataclass
class SparseCase:
    """Segments of a bucket, one change that makes something not fit, or none, and the seed of all values."""

    isa: str
    element: int
    lengths: list[int]
    threads: int
    num_payloads: int
    seed: int
    wrong: str
    value: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        gaps = self.random.integers(0, 4, len(self.lengths) + 1)
        starts = np.cumsum([0, *self.lengths])[: len(self.lengths)] + np.cumsum(gaps)[: len(self.lengths)]
        self.numel = int(sum(self.lengths) + gaps.sum())
        self.spans = np.array([*zip(starts.tolist(), self.lengths, strict=True)], dtype=np.int64).reshape(-1, 2)

    def buffer(self) -> npt.NDArray[np.uint8]:
        return self.random.integers(0, 256, self.numel * ITEM_BYTES[self.element], dtype=np.uint8)

    def floats(self, count: int) -> Floats:
        """Of ordinary size, or any bits at all."""
        if self.random.random() < 0.5:
            return self.random.standard_normal(count).astype(np.float32)
        return self.random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)

    def states(self, shorter: bool = False) -> list[Floats]:
        """One for each segment; the last an element short."""
        sizes = [*self.lengths]
        if shorter and sizes:
            sizes[-1] = max(sizes[-1] - 1, 0)
        return [self.floats(size) for size in sizes]

    def is_wrong(self, what: str) -> bool:
        """Whether this call gets the change; with no segment to change there is none."""
        return self.wrong == what and len(self.lengths) > 0

    def changed_spans(self) -> tuple[Int64s, bool]:
        """The spans, perhaps with another value in one place, and whether each lies within the buffer."""
        spans = self.spans.copy()
        if self.is_wrong("spans"):
            spans[self.value % len(spans), self.seed % 2] = self.value
        return spans, all(a >= 0 and n >= 0 and a + n <= self.numel for a, n in spans.tolist())

    def entries(self) -> tuple[Int64s, npt.NDArray[np.uint32], Floats]:
        """Sorted indices of each segment."""
        chosen = [np.flatnonzero(self.random.random(length) < 0.2) for length in self.lengths]
        counts = np.array([len(indices) for indices in chosen], dtype=np.int64)
        return counts, np.concatenate([[], *chosen]).astype(np.uint32), self.floats(int(counts.sum()))


def sparse_cases(isas: list[str], wrong: tuple[str, ...]) -> st.SearchStrategy[SparseCase]:
    """Half of them right, the others with one of the changes in `wrong`."""
    extreme = st.sampled_from([-1, LARGEST, -LARGEST - 1, 2**32, 2**32 + 1, 2**62, LARGEST // 2])
    length = st.integers(0, 20) | st.integers(0, 200) | st.sampled_from([3840, 3841, 8192, 9000, 70_000])
    return st.builds(
        SparseCase,
        isa=st.sampled_from(isas),
        element=st.integers(0, 2),
        lengths=st.lists(length, max_size=4),
        threads=st.integers(-1, 4),
        num_payloads=st.integers(1, 5),
        seed=st.integers(0, 2**32),
        wrong=st.just("") | st.sampled_from(wrong),
        value=st.integers(0, 100) | extreme | st.integers(-LARGEST - 1, LARGEST),
    )


class SparseFuzzer:
    """Calls the sparse kernels through `call(name, valid, *arguments)`, which asserts that exactly the valid pass."""

    def __init__(self, call: Call) -> None:
        self.call = call
        # With what may be wrong in the calls that each makes.
        self.kernels: list[tuple[Callable[[SparseCase], None], tuple[str, ...]]] = [
            (self.accumulate, ("spans", "states", "maxima", "thresholds")),
            (self.select, ("states", "maxima", "thresholds")),
            (self.put_back, ("states", "counts", "indices", "saved")),
            (self.sums, ("spans", "counts", "indices", "saved")),
            (self.gaps, ("indices", "saved")),
            (self.palettes, ("counts", "saved")),
        ]

    def accumulate(self, case: SparseCase) -> None:
        spans, valid = case.changed_spans()
        velocities, residuals = case.states(), case.states(shorter=case.is_wrong("states"))
        maxima = np.zeros(num_tiles(case.lengths) + case.is_wrong("maxima"), np.float32)
        factors = case.floats(len(spans) - case.is_wrong("thresholds"))
        valid &= spans[:, 1].tolist() == case.lengths and [*map(len, residuals)] == case.lengths
        valid &= len(maxima) == num_tiles(case.lengths) and len(factors) == len(spans)
        values, count = case.buffer(), len(spans)
        outputs = np.empty(count, np.float32), np.empty(count), np.empty(count), np.empty(count, np.bool_)
        for rule in range(3):
            self.call(
                "accumulate", valid, case.isa, values.ctypes.data, case.numel, case.element, spans,
                addresses(velocities if rule else []), addresses(residuals), factors, 0.9, rule == 2,
                bool(case.seed % 2), maxima, *outputs, case.threads,
            )  # fmt: skip

    def select(self, case: SparseCase) -> None:
        residuals, velocities = case.states(), case.states(shorter=case.is_wrong("states"))
        maxima = case.floats(num_tiles(case.lengths) + case.is_wrong("maxima"))
        thresholds = case.floats(len(residuals) - case.is_wrong("thresholds"))
        fits = len(maxima) == num_tiles(case.lengths) and len(thresholds) == len(residuals)
        self.call("select", fits, case.isa, addresses(residuals), addresses([]), maxima, thresholds, 0.9, case.threads)
        fits &= [*map(len, velocities)] == case.lengths
        self.call("select", fits, case.isa, addresses(residuals), addresses(velocities), maxima, thresholds, 0.0,
                  case.threads)  # fmt: skip

    def put_back(self, case: SparseCase) -> None:
        residuals, velocities = case.states(), case.states(shorter=case.is_wrong("states"))
        counts, indices, values = case.entries()
        if case.is_wrong("counts"):
            counts[case.value % len(counts)] = case.value
        if case.is_wrong("indices") and len(indices):
            indices[case.value % len(indices)] = case.value % 2**32
        saved = case.floats(len(values) + case.is_wrong("saved"))
        fits = all(count >= 0 for count in counts.tolist()) and sum(counts.tolist()) == len(indices)
        if fits:
            fits = bool((indices < np.repeat(np.array(case.lengths, dtype=np.int64), counts)).all())
        self.call("add_back", fits, addresses(residuals), counts, indices, values)
        self.call("restore", fits, addresses(residuals), addresses([]), counts, indices, values, saved[:0])
        fits &= [*map(len, velocities)] == case.lengths and len(saved) == len(values)
        self.call("restore", fits or not case.lengths, addresses(residuals), addresses(velocities), counts, indices,
                  values, saved)  # fmt: skip

    def sums(self, case: SparseCase) -> None:
        spans, valid = case.changed_spans()
        payloads = [case.entries() for _ in range(case.num_payloads)]
        counts, indices, values = ([payload[i] for payload in payloads] for i in range(3))
        if case.is_wrong("indices") and len(indices[-1]):
            indices[-1][case.value % len(indices[-1])] = case.value % 2**32
        if case.is_wrong("counts"):
            counts[-1][case.value % len(counts[-1])] = case.value
        sums = [sum(mine.tolist()) for mine in counts]
        fits = all(mine.min(initial=0) >= 0 for mine in counts) and sums == [*map(len, indices)]
        values_of = case.buffer()
        self.call("scatter_mean", valid and fits, values_of.ctypes.data, case.numel, case.element, spans, counts,
                  indices, values, case.num_payloads, case.threads)  # fmt: skip
        lengths = np.array(case.lengths, dtype=np.int64)
        self.call("merge", fits, lengths, counts, indices, values, case.threads)
        lengths[: case.is_wrong("saved")] = -1 - abs(case.value) // 2
        self.call("merge", fits and not case.is_wrong("saved"), lengths, counts, indices, values, case.threads)

    def gaps(self, case: SparseCase) -> None:
        limit = sum(case.lengths)
        positions = np.flatnonzero(case.random.random(limit) < case.random.choice([0.001, 0.1, 0.9, 1.0]))
        if case.is_wrong("indices") and len(positions):
            positions[case.value % len(positions)] = case.value
        given = case.value if case.is_wrong("saved") else limit
        valid = 0 <= given <= MOST_POSITIONS and all(
            a < b for a, b in zip([-1, *positions.tolist()], [*positions.tolist(), given], strict=True)
        )
        valid |= 0 <= given <= MOST_POSITIONS and len(positions) == 0
        self.call("gaps_encode", valid, positions, given)
        stream = case.random.integers(0, 256, case.random.integers(0, 200), dtype=np.uint8)
        stream &= case.random.choice(np.array([255, 17, 1, 0], dtype=np.uint8))
        for count in (int(case.random.integers(0, 50)), case.value):
            self.call("gaps_decode", count >= 0 and 0 <= given <= MOST_POSITIONS, stream, count, given)

    def palettes(self, case: SparseCase) -> None:
        counts = np.array(case.lengths, dtype=np.int64)
        few = case.random.choice([1, 2, 40, 10**6])
        values = case.random.integers(0, few, sum(case.lengths)).astype(np.float32)
        if case.is_wrong("counts"):
            counts[case.value % len(counts)] = case.value
        if case.is_wrong("saved"):
            values = values[:-1]
        valid = all(count >= 0 for count in counts.tolist()) and sum(counts.tolist()) == len(values)
        self.call("palettes", valid, values, counts)

    def other_arguments(self, isa: str) -> None:
        """Arguments besides segments and entries that must be refused."""
        values, spans = np.zeros(9, np.float32), np.array([[0, 9]], dtype=np.int64)
        state, one, ones = addresses([values]), np.ones(1, np.float32), np.ones(1)
        none, flags = addresses([]), np.empty(1, np.bool_)
        entries = [np.array([1])], [np.zeros(1, np.uint32)], [one]
        at = values.ctypes.data
        for valid, which, element in ((True, isa, 0), (False, "sse9", 0), (False, isa, 3), (False, isa, -1)):
            self.call("accumulate", valid, which, at, 9, element, spans, none, state, one, 0.9, False, False, one, one,
                      ones, ones, flags, 1)  # fmt: skip
        self.call("accumulate", False, isa, at, 9, 0, spans, none, state, one, 0.9, False, False, one, one, ones, ones,
                  flags[:0], 1)  # fmt: skip
        self.call("select", False, "sse9", state, none, one, one, 0.0, 1)
        for num_ranks in (0, -1):
            self.call("scatter_mean", False, at, 9, 0, spans, *entries, num_ranks, 1)
        self.call("scatter_mean", False, at, 9, 0, spans, [], [], [], 1, 1)
        self.call("scatter_mean", False, at, 9, 0, spans, entries[0] * 2, entries[1], entries[2], 1, 1)
        huge = np.array([[at, 2**32 + 1]], dtype=np.int64)
        self.call("select", False, isa, huge, none, one, one, 0.0, 1)
        self.call("merge", False, np.array([2**32 + 1]), *entries, 1)
