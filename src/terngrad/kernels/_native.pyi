import numpy as np
from numpy.typing import NDArray

def available() -> list[str]: ...
def statistics(
    isa: str,
    data: int,
    numel: int,
    element: int,
    spans: NDArray[np.int64],
    largest: NDArray[np.float32],
    total: NDArray[np.float64],
    squares: NDArray[np.float64],
    threads: int,
) -> None: ...
def ternarize(
    isa: str,
    data: int,
    numel: int,
    element: int,
    code: int,
    table: NDArray[np.int64],
    block: int,
    keys: NDArray[np.uint32],
    limit: NDArray[np.float32],
    step: NDArray[np.float32],
    packed: int,
    num_bytes: int,
    threads: int,
) -> None: ...
def mean_shared(
    isa: str,
    data: int,
    numel: int,
    element: int,
    code: int,
    table: NDArray[np.int64],
    block: int,
    packed: list[int],
    num_bytes: int,
    scale: NDArray[np.float32],
    threads: int,
) -> bool: ...
def mean_own(
    isa: str,
    data: int,
    numel: int,
    element: int,
    code: int,
    table: NDArray[np.int64],
    block: int,
    packed: list[int],
    num_bytes: int,
    scale: NDArray[np.float32],
    threads: int,
) -> bool: ...
def sum_levels(
    isa: str,
    code: int,
    table: NDArray[np.int64],
    packed: list[int],
    num_bytes: int,
    levels: int,
    num_level_bytes: int,
    threads: int,
) -> bool: ...
def mean_levels(
    isa: str,
    data: int,
    numel: int,
    element: int,
    table: NDArray[np.int64],
    block: int,
    num_payloads: int,
    levels: int,
    num_bytes: int,
    scale: NDArray[np.float32],
    threads: int,
) -> bool: ...
def sum_symbols(
    isa: str,
    code: int,
    table: NDArray[np.int64],
    packed: list[int],
    num_bytes: int,
    symbols: int,
    num_symbols: int,
    threads: int,
) -> bool: ...
def mean_symbols(
    isa: str,
    data: int,
    numel: int,
    element: int,
    table: NDArray[np.int64],
    block: int,
    num_payloads: int,
    symbols: int,
    num_symbols: int,
    scale: NDArray[np.float32],
    threads: int,
) -> bool: ...
def entropy_encode(
    isa: str,
    radix: int,
    digits: int,
    symbols: int,
    num_symbols: int,
    spans: NDArray[np.int64],
    target: int,
    num_bytes: int,
    lengths: NDArray[np.int64],
    threads: int,
) -> None: ...
def entropy_decode(
    isa: str,
    radix: int,
    digits: int,
    payload: int,
    num_bytes: int,
    lengths: NDArray[np.int64],
    spans: NDArray[np.int64],
    symbols: int,
    num_symbols: int,
    threads: int,
) -> bool: ...
def error(
    isa: str,
    data: int,
    numel: int,
    element: int,
    code: int,
    table: NDArray[np.int64],
    block: int,
    packed: int,
    num_bytes: int,
    scale: NDArray[np.float32],
    nonzero: NDArray[np.int64],
    squared_error: NDArray[np.float64],
    threads: int,
) -> bool: ...
def accumulate(
    isa: str,
    data: int,
    numel: int,
    element: int,
    spans: NDArray[np.int64],
    velocities: NDArray[np.int64],
    residuals: NDArray[np.int64],
    factors: NDArray[np.float32],
    momentum: float,
    nesterov: bool,
    clear: bool,
    maxima: NDArray[np.float32],
    largest: NDArray[np.float32],
    total: NDArray[np.float64],
    squares: NDArray[np.float64],
    finite: NDArray[np.bool_],
    threads: int,
) -> None: ...
def select(
    isa: str,
    residuals: NDArray[np.int64],
    velocities: NDArray[np.int64],
    maxima: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    factor: float,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32], NDArray[np.float32]]: ...
def restore(
    residuals: NDArray[np.int64],
    velocities: NDArray[np.int64],
    counts: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
    saved: NDArray[np.float32],
) -> None: ...
def add_back(
    residuals: NDArray[np.int64],
    counts: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
) -> None: ...
def scatter_mean(
    data: int,
    numel: int,
    element: int,
    spans: NDArray[np.int64],
    counts: list[NDArray[np.int64]],
    indices: list[NDArray[np.uint32]],
    values: list[NDArray[np.float32]],
    num_ranks: int,
    threads: int,
) -> bool: ...
def merge(
    lengths: NDArray[np.int64],
    counts: list[NDArray[np.int64]],
    indices: list[NDArray[np.uint32]],
    values: list[NDArray[np.float32]],
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]] | None: ...
def gaps_encode(positions: NDArray[np.int64], limit: int) -> NDArray[np.uint8]: ...
def gaps_decode(stream: NDArray[np.uint8], count: int, limit: int) -> NDArray[np.int64] | None: ...
def palettes(
    values: NDArray[np.float32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint16], NDArray[np.float32], NDArray[np.uint16]]: ...
