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
