"""Ternary codes: drawing and packing them, and means and integer sums of what was packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from terngrad.kernels.layout import (
    GROUP_BYTES,
    LANES,
    Code,
    Run,
    Runs,
    Uint32Array,
    level_rows,
    packed_bytes,
    scaler_index,
    symbol_bytes,
    symbol_digits,
)
from terngrad.kernels.reference.statistics import sum_chunks

_WORD = 0xFFFFFFFF


def draws(key: Sequence[int], offset: int, count: int, device: torch.device) -> Tensor:
    """The 24-bit draws of elements offset .. offset + count of the parameter that `key` stands for."""
    x = torch.arange(offset, offset + count, dtype=torch.int64, device=device) & _WORD
    x = (int(key[0]) + x * 0x9E3779B9) & _WORD
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _WORD
    x = (((x ^ (x >> 15)) ^ int(key[1])) * 0xD35A2D97) & _WORD
    return x >> 8


def _per_element(scalers: Tensor, run: Run, block: int) -> Tensor:
    """The scaler of each element of a run, or one that serves all."""
    mine = scalers[scaler_index(run, block)]
    if block == 0 or len(mine) == 1:
        return mine[:1]
    skip = run.offset % block
    return mine.repeat_interleave(block)[skip : skip + run.length]


def _weights(code: Code, device: torch.device) -> Tensor:
    if code is Code.TWO_BIT:
        weights = [4 ** (15 - k) for k in range(16)]
    else:
        weights = [3 ** (4 - k % 5) * 256 ** (k // 5) for k in range(20)]
    return torch.tensor(weights, dtype=torch.int64, device=device)


def _pack_digits(digits: Tensor, weights: Tensor, padding: int) -> Tensor:
    """Digits in element order, to the bytes of their groups."""
    rows = len(weights)
    padded = torch.nn.functional.pad(digits, (0, -len(digits) % (rows * LANES)), value=padding)
    words = (padded.view(-1, rows, LANES) * weights[:, None]).sum(dim=1)
    shifts = torch.arange(0, 32, 8, device=digits.device)
    return ((words[:, :, None] >> shifts) & 255).to(torch.uint8).flatten()


def _words(packed: Tensor) -> Tensor:
    shifts = torch.arange(0, 32, 8, device=packed.device)
    return (packed.view(-1, LANES, 4).to(torch.int64) << shifts).sum(dim=2)


def _unpack_code(packed: Tensor, code: Code, count: int) -> tuple[Tensor, bool]:
    """The digits 0, 1, 2 of `count` elements, and whether every code is one that an encoder writes."""
    words = _words(packed)[:, None, :]
    rows = torch.arange(code.rows, device=packed.device)[:, None]
    if code is Code.TWO_BIT:
        digits = (words >> (30 - 2 * rows)) & 3
        good = bool((digits < 3).all())
    else:
        byte = (words >> (rows // 5 * 8)) & 255
        digits = (byte // 3 ** (4 - rows % 5)) % 3
        good = bool((packed < 243).all())
    return digits.flatten()[:count], good


def ternarize(
    buffer: Tensor, runs: Runs, keys: Uint32Array, limit: Tensor, step: Tensor, code: Code, packed: Tensor
) -> None:
    """Clips to `limit`, ternarizes with probability |g| / (step * 2^24) and packs every run into `packed`."""
    for run, key in zip(runs.rows, keys.tolist(), strict=True):
        value = buffer[run.source : run.source + run.length].float()
        threshold = draws(key, run.offset, run.length, buffer.device).float() * _per_element(step, run, runs.block)
        sent = threshold < torch.minimum(value.abs(), _per_element(limit, run, runs.block))
        ternary = torch.where(sent, torch.sign(value), 0.0).to(torch.int64)
        codes = _pack_digits(ternary + 1, _weights(code, buffer.device), padding=1)
        packed[run.packed : run.packed + len(codes)] = codes


def _codes_of(run: Run, packed: Tensor, code: Code) -> tuple[Tensor, bool]:
    """The ternary values of a run."""
    size = packed_bytes(run.length, code.rows)
    digits, good = _unpack_code(packed[run.packed : run.packed + size], code, run.length)
    return digits - 1, good


def _sum_of(run: Run, payloads: Sequence[Tensor], code: Code) -> tuple[Tensor, bool]:
    parts = [_codes_of(run, payload, code) for payload in payloads]
    return torch.stack([values for values, _ in parts]).sum(dim=0), all(good for _, good in parts)


def mean_shared(buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
    """buffer = scale * (sum over payloads). False where a code is one that no encoder writes."""
    all_good = True
    for run in runs.rows:
        total, good = _sum_of(run, payloads, code)
        result = total.float() * _per_element(scale, run, runs.block)
        buffer[run.source : run.source + run.length] = result.to(buffer.dtype)
        all_good &= good
    return all_good


def mean_own(buffer: Tensor, runs: Runs, payloads: Sequence[Tensor], scale: Tensor, code: Code) -> bool:
    """buffer = (sum over payloads p of scale[p] * values_p, in order) / N, with scale of shape (N, units)."""
    all_good = True
    share = float(np.float32(1) / np.float32(len(payloads)))
    for run in runs.rows:
        total = torch.zeros(run.length, dtype=torch.float32, device=buffer.device)
        for payload, own in zip(payloads, scale, strict=True):
            values, good = _codes_of(run, payload, code)
            total = total + values.float() * _per_element(own, run, runs.block)
            all_good &= good
        buffer[run.source : run.source + run.length] = (total * share).to(buffer.dtype)
    return all_good


def _level_weights(num_payloads: int, device: torch.device) -> Tensor:
    base, rows = 2 * num_payloads + 1, level_rows(num_payloads)
    return torch.tensor([base ** (rows - 1 - k) for k in range(rows)], dtype=torch.int64, device=device)


def sum_levels(runs: Runs, payloads: Sequence[Tensor], code: Code, levels: Tensor) -> bool:
    """Packs the sum over payloads of every run as 2N+1 levels into `levels`."""
    all_good = True
    for run in runs.rows:
        total, good = _sum_of(run, payloads, code)
        packed = _pack_digits(total + len(payloads), _level_weights(len(payloads), levels.device), len(payloads))
        levels[run.levels : run.levels + len(packed)] = packed
        all_good &= good
    return all_good


def mean_levels(buffer: Tensor, runs: Runs, levels: Tensor, num_payloads: int, scale: Tensor) -> bool:
    """buffer = scale * sum, from the packed levels of the sum of `num_payloads` payloads."""
    base, weights = 2 * num_payloads + 1, _level_weights(num_payloads, levels.device)
    all_good = True
    for run in runs.rows:
        size = packed_bytes(run.length, len(weights))
        words = _words(levels[run.levels : run.levels + size])
        digits = ((words[:, None, :] // weights[:, None]) % base).flatten()[: run.length]
        result = (digits - num_payloads).float() * _per_element(scale, run, runs.block)
        buffer[run.source : run.source + run.length] = result.to(buffer.dtype)
        all_good &= bool((words < base ** len(weights)).all())
    return all_good


def _symbol_weights(num_payloads: int, device: torch.device) -> Tensor:
    base, digits = 2 * num_payloads + 1, symbol_digits(num_payloads)
    return torch.tensor([base ** (digits - 1 - k) for k in range(digits)], dtype=torch.int64, device=device)


def sum_symbols(runs: Runs, payloads: Sequence[Tensor], code: Code, symbols: Tensor) -> bool:
    """Writes the sum over at most 127 payloads of every run as symbols for the entropy coder, in place of its levels.

    A symbol holds D levels of radix 2N+1: D rows of eight elements make eight symbols, the first row in the highest
    digits. Missing elements of the last rows are zeros.
    """
    weights = _symbol_weights(len(payloads), symbols.device)
    all_good = True
    for run in runs.rows:
        total, good = _sum_of(run, payloads, code)
        missing = -run.length % (len(weights) * LANES)
        levels = torch.nn.functional.pad(total + len(payloads), (0, missing), value=len(payloads))
        packed = (levels.view(-1, len(weights), LANES) * weights[:, None]).sum(dim=1).to(torch.uint8).flatten()
        symbols[run.levels : run.levels + len(packed)] = packed
        all_good &= good
    return all_good


def mean_symbols(buffer: Tensor, runs: Runs, symbols: Tensor, num_payloads: int, scale: Tensor) -> bool:
    """buffer = scale * sum, from the symbols of the sum of `num_payloads` payloads."""
    base, weights = 2 * num_payloads + 1, _symbol_weights(num_payloads, symbols.device)
    all_good = True
    for run in runs.rows:
        size = symbol_bytes(run.length, len(weights))
        mine = symbols[run.levels : run.levels + size].to(torch.int64)
        digits = ((mine.view(-1, 1, LANES) // weights[:, None]) % base).flatten()[: run.length]
        result = (digits - num_payloads).float() * _per_element(scale, run, runs.block)
        buffer[run.source : run.source + run.length] = result.to(buffer.dtype)
        all_good &= bool((mine < base ** len(weights)).all())
    return all_good


def error(buffer: Tensor, runs: Runs, packed: Tensor, scale: Tensor, code: Code) -> tuple[Tensor, Tensor, bool]:
    """Non-zero codes (int64) and the sum of (scale * code - g)^2 (float64) of each run."""
    nonzero = torch.zeros(len(runs), dtype=torch.int64, device=buffer.device)
    squared = torch.zeros(len(runs), dtype=torch.float64, device=buffer.device)
    all_good = True
    for i, run in enumerate(runs.rows):
        if run.length == 0:
            continue
        values, good = _codes_of(run, packed, code)
        difference = values.float() * _per_element(scale, run, runs.block)
        difference = difference - buffer[run.source : run.source + run.length].float()
        nonzero[i] = (values != 0).sum()
        squared[i] = sum_chunks((difference * difference)[None])[0]
        all_good &= good
    return nonzero, squared, all_good


assert GROUP_BYTES == LANES * 4
