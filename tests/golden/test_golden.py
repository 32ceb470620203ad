"""Every backend writes the golden payloads to the byte and reads them back; and so does the layout read by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest
from golden import CASES, DIRECTORY, Golden, decode, encode, gradients_of, load

HEADER = struct.Struct("<4sBBBBHHIQQQQI")
BODIES = {"scalers": 1, "two-bit": 2, "base3": 3, "levels": 4, "dense": 5}
DENSE_TYPES = {"fp32": (1, "f"), "fp16": (2, "e"), "bf16": (3, None)}


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load(request.param)


def test_every_case_has_a_file_and_every_file_a_case() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == set(CASES)
    assert all(load(name)["inputs"] == inputs for name, inputs in CASES.items())


def test_every_backend_writes_the_golden_bytes(golden: Golden, each_backend: str) -> None:
    assert encode(golden["inputs"]) == golden["outputs"]


def test_every_backend_reads_the_golden_bytes(golden: Golden, each_backend: str) -> None:
    assert decode(golden) == golden["outputs"]["average"]


# The same bytes read from their description, without the package.


def floats(data: bytes, kind: str) -> list[float]:
    if kind == "bf16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        kind = "fp32"
    letter = DENSE_TYPES[kind][1]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(f'<{letter}')}{letter}", data))


def digits_of(word: int, body: int, base: int, rows: int) -> list[int]:
    """The digits of one lane, row 0 first."""
    if body == BODIES["base3"]:
        return [byte // 3 ** (4 - k) % 3 for byte in word.to_bytes(4, "little") for k in range(5)]
    return [word // base ** (rows - 1 - k) % base for k in range(rows)]


def unpack(data: bytes, body: int, count: int, num_payloads: int) -> list[int]:
    """`count` values from groups of eight little-endian words, element 8k + j in row k of lane j."""
    base = {BODIES["two-bit"]: 4, BODIES["base3"]: 3}.get(body, 2 * num_payloads + 1)
    rows = 16 if base == 4 else 20 if body == BODIES["base3"] else max(k for k in range(33) if base**k <= 2**32)
    bias = num_payloads if body == BODIES["levels"] else 1
    values: list[int] = []
    for at in range(0, len(data), 32):
        lanes = [digits_of(word, body, base, rows) for word in struct.unpack_from("<8I", data, at)]
        values.extend(lanes[j][k] - bias for k in range(rows) for j in range(8))
    assert all(value == 0 for value in values[count:])
    return values[:count]


def read_by_hand(
    message: str, body: str, dense: str, bucket: int, step: int, num_payloads: int = 1
) -> tuple[int, int, list[int], list[float]]:
    """Sender, shard, ternary values or sums, and dense values of a message with at most one run."""
    data = bytes.fromhex(message)
    magic, version, kind, dense_type, reserved, sender, shard, *rest = HEADER.unpack_from(data)
    assert (magic, version, kind, reserved) == (b"TGRD", 1, BODIES[body], 0)
    assert rest[:2] == [bucket, step]
    num_coded, num_dense, num_bytes, checksum = rest[2:]
    assert (num_bytes, checksum) == (len(data), zlib.crc32(data[:48]))
    assert dense_type == (DENSE_TYPES[dense][0] if body != "scalers" else 0)
    if body in ("dense", "scalers"):
        codes, values = 0, []
    else:
        per_group = {"two-bit": 128, "base3": 160}.get(body) or 8 * max(
            k for k in range(33) if (2 * num_payloads + 1) ** k <= 2**32
        )
        codes = -(-num_coded // per_group) * 32
        values = unpack(data[52 : 52 + codes], kind, num_coded, num_payloads)
    size = 4 if dense == "fp32" or body == "scalers" else 2
    count = num_coded if body == "scalers" else num_dense
    floating = floats(data[52 + codes : 52 + codes + size * count], "fp32" if body == "scalers" else dense)
    assert not any(data[52 + codes + size * count :])
    return sender, shard, values, floating


@pytest.mark.parametrize(("name", "codec"), [("two_bit", "two-bit"), ("base3", "base3")])
def test_ternary_messages_mean_what_their_description_says(name: str, codec: str) -> None:
    golden = load(name)
    inputs, outputs = golden["inputs"], golden["outputs"]
    totals: list[int] = [0] * 170
    scale = 0.0
    dense: list[list[float]] = []
    for rank, own in enumerate(outputs["messages"]):
        gradient = gradients_of(inputs)[rank]
        *origin, scalers = read_by_hand(outputs["scalers"][rank], "scalers", "fp32", 2, 3)
        assert origin == [rank, 0, []]
        assert scalers == [max(abs(g) for g in gradient[:170])]  # 2.5 sigma is above every value
        sender, shard, values, exact = read_by_hand(own[0], codec, "fp32", 2, 3)
        assert (sender, shard) == (rank, 0)
        assert all(value in (0, (g > 0) - (g < 0)) for value, g in zip(values, gradient, strict=False))
        assert exact == gradient[170:]
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        scale = max(scale, scalers[0])
        dense.append(exact)
    means = [sum(column) / 2 for column in zip(*dense, strict=True)]
    assert floats(bytes.fromhex(outputs["average"]), "fp32") == [scale / 2 * total for total in totals] + means


def ternary_values(messages: Sequence[str], codec: str, dense: str) -> list[int]:
    """All shards' values of one rank."""
    return [value for message in messages for value in read_by_hand(message, codec, dense, 2, 3)[2]]


@pytest.mark.parametrize(("name", "codec"), [("levels_of_2", "base3"), ("levels_of_3", "two-bit")])
def test_levels_are_the_sums_of_the_codes(name: str, codec: str) -> None:
    golden = load(name)
    outputs, dense = golden["outputs"], golden["inputs"]["dtype"]
    by_rank = [ternary_values(own, codec, dense) for own in outputs["messages"]]
    num_payloads = len(by_rank)
    sums: list[int] = []
    for rank, message in enumerate(outputs["sums"]):
        sender, shard, values, _ = read_by_hand(message, "levels", dense, 2, 3, num_payloads)
        assert sender == shard == rank
        sums.extend(values)
    assert sums == [sum(column) for column in zip(*by_rank, strict=True)]
    assert max(map(abs, sums)) == num_payloads


@pytest.mark.parametrize("dtype", DENSE_TYPES)
def test_dense_messages_hold_the_gradient_in_its_type(dtype: str) -> None:
    golden = load(f"dense_{dtype}")
    for rank, own in enumerate(golden["outputs"]["messages"]):
        found = [value for message in own for value in read_by_hand(message, "dense", dtype, 2, 3)[3]]
        assert found == gradients_of(golden["inputs"])[rank]


def positions_of(stream: bytes, count: int, limit: int) -> list[int]:
    """Gap-coded positions, read from their description."""
    bits = [byte >> i & 1 for byte in stream for i in range(8)]
    means, escape_bits = [32 * (limit - count) // count] * 51, (limit - count).bit_length()
    at, position, gaps, found = 0, -1, [0, 0, 0], []

    def number(size: int) -> int:
        nonlocal at
        at += size
        return sum(bit << i for i, bit in enumerate(bits[at - size : at]))

    for _ in range(count):
        context = sum(gaps[-3:]).bit_length()
        low = min((means[context] >> 6).bit_length(), 32)
        quotient = 0
        while quotient < 16 and not number(1):
            quotient += 1
        gap = quotient << low | number(low) if quotient < 16 else number(escape_bits)
        position += gap + 1
        means[context] += min(gap, 16 << low) - (means[context] >> 5)
        gaps.append(gap)
        found.append(position)
    assert not any(bits[at:])
    return found


@pytest.mark.parametrize(("name", "kind", "dense"), [("sparse", "bf16", 5), ("sparse_whole", "fp16", 0)])
def test_sparse_messages_mean_what_their_description_says(name: str, kind: str, dense: int) -> None:
    golden = load(name)
    gradients = gradients_of(golden["inputs"])
    size = DENSE_TYPES[kind][0] and 2
    for rank, (text,) in enumerate(golden["outputs"]["messages"]):
        data = bytes.fromhex(text)
        fields = HEADER.unpack(data[:52])
        assert fields[2:6] == (8, 1 if dense else 0, 0, rank)
        assert fields[9:12] == (175 - dense, dense, len(data))
        count, gap_bytes = struct.unpack("<II", data[52:60])
        values = floats(data[60 + gap_bytes : 60 + gap_bytes + size * count], kind)
        whole = count == 175 - dense
        positions = list(range(count)) if whole else positions_of(data[60 : 60 + gap_bytes], count, 175 - dense)
        assert values == [gradients[rank][position] for position in positions]
        assert floats(data[60 + gap_bytes + size * count :], "fp32") == gradients[rank][175 - dense :]
        assert whole == (name == "sparse_whole")


def test_sums_of_signs_mean_what_their_description_says() -> None:
    golden = load("sparse_signs")
    average = floats(bytes.fromhex(golden["outputs"]["average"]), "fp32")
    first, sums = 0, [0.0] * 175
    for text in golden["outputs"]["sums"]:
        data = bytes.fromhex(text)
        fields = HEADER.unpack(data[:52])
        assert fields[2] == 9
        room = fields[9]
        count, gap_bytes = struct.unpack("<II", data[52:60])
        positions = [first + position for position in positions_of(data[60 : 60 + gap_bytes], count, room)]
        counts = [n for n in (sum(p < 170 for p in positions), sum(p >= 170 for p in positions)) if n]
        data = data[60 + gap_bytes :]
        sizes = struct.unpack(f"<{len(counts)}H", data[: 2 * len(counts)])
        data = data[2 * len(counts) :]
        tables = []
        for size, number in zip(sizes, counts, strict=True):
            length = 4 * (size or number)
            tables.append(floats(data[:length], "fp32"))
            data = data[length:]
        number = sum(n for size, n in zip(sizes, counts, strict=True) if size)
        ranks: list[int] = []
        if number:
            (span,) = struct.unpack("<Q", data[:8])
            places = positions_of(data[8:], number, span)
            assert places[-1] == span - 1
            ranks = [b - a - 1 for a, b in zip([-1, *places], places, strict=False)]
        at = 0
        for size, n, table in zip(sizes, counts, tables, strict=True):
            mine = [table[ranks.pop(0)] for _ in range(n)] if size else table
            for position, value in zip(positions[at : at + n], mine, strict=True):
                sums[position] = value
            at += n
        first += room
    assert first == 175
    assert average == [total / 2 for total in sums]
    assert any(sums)
