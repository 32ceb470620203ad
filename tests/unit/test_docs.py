"""The documents say what the code does: names, options, the README's diff, the bytes of the worked examples."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import terngrad as tg
from terngrad.codecs import Segment
from terngrad.ddp.phases import Phases
from terngrad.ddp.statistics import Counters, summary
from terngrad.kernels import Code, Run, Runs, cut_streams, kernels_for, level_rows, symbol_digits
from terngrad.methods import BucketCode, Coder, ParameterInfo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
WIRE = (ROOT / "docs" / "wire-formats.md").read_text()
EXAMPLE = (ROOT / "examples" / "train_ddp.py").read_text()
CPU = torch.device("cpu")


# Names and options


def public_names(namespace: object) -> set[str]:
    return {name for name in vars(namespace) if not name.startswith("_")}


def documented(name: str) -> bool:
    """Whether docs/api.md has `name` in code type, alone, called or as a member."""
    return re.search(rf"`(\w+\.)?{re.escape(name)}(`|\()", API) is not None


def test_all_is_what_the_package_exports() -> None:
    exported = {name for name in public_names(tg) if not isinstance(getattr(tg, name), types.ModuleType)}
    assert exported == set(tg.__all__)
    assert len(set(tg.__all__)) == len(tg.__all__)


@pytest.mark.parametrize("name", tg.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("name", sorted(public_names(tg.Handle)))
def test_every_member_of_the_handle_is_documented(name: str) -> None:
    assert documented(name)


def signature_options() -> set[str]:
    functions = (tg.attach, tg.hook, tg.set_backend, tg.Handle.stats)
    return {name for function in functions for name in inspect.signature(function).parameters} - {"self"}


@pytest.mark.parametrize("name", sorted(signature_options()))
def test_every_option_is_documented(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", API)


@pytest.mark.parametrize(
    "field", [*dataclasses.fields(tg.TernGrad), *inspect.signature(tg.attach).parameters.values()], ids=lambda f: f.name
)
def test_tables_give_the_defaults_of_the_code(field: dataclasses.Field[object] | inspect.Parameter) -> None:
    default = "" if field.default is inspect.Parameter.empty else f"`{field.default!r}`".replace("'", '"')
    row = re.search(rf"^\| `{field.name}` \| ([^|]*?) ?\|", API, re.MULTILINE)
    assert row is not None
    assert row.group(1) == default


@pytest.mark.parametrize("name", sorted(tg.Method.registry))
def test_every_spec_is_documented(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("spec", sorted(set(re.findall(r'"((?:terngrad|fp|bf)[^" ]*)"', README + API))))
def test_every_spec_shown_is_one_that_from_spec_takes(spec: str) -> None:
    method = tg.from_spec(spec)
    assert tg.from_spec(method.spec) == method


def test_every_entry_of_stats_is_documented_and_no_other() -> None:
    class NoChannel:
        bytes_sent = bytes_received = 0

    coder = Coder(tg.TernGrad(), [], rank=0, world_size=1, seed=0)
    entries = summary(Counters(), NoChannel(), Phases(), coder, [], per_parameter=True)  # type: ignore[arg-type]
    table = API.split("### `stats()`")[1].split("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(entries)


# Files and links


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "benchmarks/README.md",
        "experiments/README.md",
        "docs/design.md",
        "docs/api.md",
        "docs/cli.md",
        "docs/lab.md",
        "docs/recipes.md",
        "docs/report.md",
        "docs/wire-formats.md",
    ],
)
def test_links_and_paths_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text()
    links = {(ROOT / page).parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)}
    paths = {ROOT / path for path in re.findall(r"`((?:tests|examples|docs|csrc)/[\w/.-]+)`", text)}
    modules = re.findall(r"`((?:kernels|codecs|methods|exchange|ddp)/\w+\.py)`", text)
    wanted = links | paths | {ROOT / "src" / "terngrad" / module for module in modules}
    assert sorted(str(path.relative_to(ROOT)) for path in wanted if not path.exists()) == []


# The README and the example


def marked_lines() -> list[str]:
    """The lines of the example that are there because of terngrad."""
    return [line.removesuffix("# terngrad").strip() for line in EXAMPLE.splitlines() if line.endswith("# terngrad")]


def test_the_diff_of_the_readme_is_in_the_example() -> None:
    diff = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)[0].splitlines()
    # The example takes the method from its command line where the README names it.
    added = [line[1:].replace('"terngrad"', "method") for line in diff if line.startswith("+")]
    assert added == marked_lines()
    for line in diff:
        if line.startswith(" ") and line.strip():
            assert line.strip() in [found.strip() for found in EXAMPLE.splitlines()]


@pytest.mark.distributed
def test_the_example_trains_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(ROOT / "examples" / "train_ddp.py"), "--method", "terngrad", "--epochs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    ratio = re.search(r"epoch  1/1: accuracy [\d.]+%, ([\d.]+)x fewer bytes sent", done.stdout)
    assert ratio, done.stdout
    assert float(ratio[1]) > 18


def table_of(text: str) -> dict[str, list[str]]:
    """The rows of a printed table, by their first cell."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_the_readme_shows_the_table_of_the_demo() -> None:
    """Not the figures, which are of one run, but that they are of what `make demo` runs."""
    command = re.search(r"^\t\$\(BIN\)/terngrad (compare .*?)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command
    shown = table_of(README)
    assert list(shown) == command[1].split("--methods ")[1].split()[0].split(",")
    accuracies = [float(row[0].removesuffix("%")) for row in shown.values()]
    assert max(accuracies) - min(accuracies) < 2


# The wire's worked examples


def block(kind: str, name: str) -> str:
    found = re.findall(rf"```{kind} {re.escape(name)}\n(.*?)```", WIRE, re.DOTALL)
    assert len(found) == 1, f"docs/wire-formats.md has {len(found)} examples {kind} {name}"
    return str(found[0])


def example_bytes(name: str) -> list[int]:
    return list(bytes.fromhex(block("hex", name)))


def example_values(name: str) -> Tensor:
    return torch.tensor([int(value) for value in block("values", name).split()])


def pack(values: Tensor, code: Code) -> Tensor:
    """Codes of ternary values: with a scaler of one, an element of magnitude one is always sent."""
    one = torch.ones(1)
    packed = torch.zeros(32, dtype=torch.uint8)
    runs = Runs([Run(0, len(values), 0, 0, 0, 0)])
    keys = torch.zeros(1, 2, dtype=torch.uint32).numpy()
    kernels_for(CPU).ternarize(values.float(), runs, keys, one, one * 2.0**-24, code, packed)
    return packed


@pytest.mark.parametrize(("name", "code"), [("two-bit", Code.TWO_BIT), ("base3", Code.BASE3)])
def test_worked_examples_of_codes_hold(each_backend: str, name: str, code: Code) -> None:
    assert pack(example_values("v"), code).tolist() == example_bytes(name)


def test_worked_example_of_levels_holds(each_backend: str) -> None:
    v, w = example_values("v"), example_values("w")
    assert torch.equal(example_values("v+w"), v + w)
    levels = torch.zeros(32, dtype=torch.uint8)
    runs = Runs([Run(0, len(v), 0, 0, 0, 0)])
    kernels_for(CPU).sum_levels(runs, [pack(v, Code.BASE3), pack(w, Code.BASE3)], Code.BASE3, levels)
    assert levels.tolist() == example_bytes("levels")


def test_worked_example_of_a_stream_holds(each_backend: str) -> None:
    kernels, spans = kernels_for(CPU), cut_streams(0, 80)
    symbols = torch.full((80,), 0x79, dtype=torch.uint8)
    symbols[9] = 0xAF
    target, found = torch.zeros(80, dtype=torch.uint8), torch.zeros(80, dtype=torch.uint8)
    lengths = kernels.entropy_encode(symbols, spans, 3, 5, target)
    assert target[: int(lengths[0])].tolist() == example_bytes("stream")
    assert kernels.entropy_decode(target, lengths, spans, 3, 5, found)
    assert torch.equal(found, symbols)


def buckets(num_shards: int) -> list[BucketCode]:
    """The bucket of the examples on both ranks: ten ternary elements and two dense ones, scalers exchanged."""
    parameters = [ParameterInfo("weight", 10, False), ParameterInfo("bias", 2, True)]
    segments = (Segment(0, 0, 10), Segment(1, 10, 2))
    found = []
    for rank, (name, dense) in enumerate((("v", [1.0, -2.0]), ("w", [3.0, 1.0]))):
        coder = Coder(tg.TernGrad(clip=0, dense_below=8), parameters, rank, world_size=2, seed=0)
        frame = coder.frame(segments, torch.float32, False, num_shards)
        gradient = torch.cat([0.5 * example_values(name), torch.tensor(dense)])
        found.append(BucketCode(coder, frame, gradient, bucket=0, step=7))
    scalers = torch.zeros(2, found[0].frame.scalers_nbytes, dtype=torch.uint8)
    for code, message in zip(found, scalers, strict=True):
        code.scalers_message(message)
    assert scalers[0].tolist() == example_bytes("scalers")
    for code in found:
        code.take_scalers(scalers)
    return found


def encoded(code: BucketCode) -> Tensor:
    messages = torch.zeros(code.frame.num_shards, code.frame.nbytes, dtype=torch.uint8)
    code.encode(messages)
    return messages


def test_worked_examples_of_scalers_and_codes_messages_hold(each_backend: str) -> None:
    assert encoded(buckets(1)[0])[0].tolist() == example_bytes("codes")


def test_worked_example_of_a_sums_message_holds(each_backend: str) -> None:
    codes = buckets(2)
    received = torch.stack([encoded(code)[1] for code in codes])
    target = torch.zeros(codes[1].frame.sum_nbytes, dtype=torch.uint8)
    codes[1].sum_shard(received, target)
    assert target.tolist() == example_bytes("sums")


def test_worked_example_of_gap_coded_indices_holds(each_backend: str) -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| \d+ \| \d+ \| \d+ \| \d+ \| ([` 01]+) \|$", WIRE, re.MULTILINE)
    positions = np.array([int(position) for position, _, _ in rows])
    assert (np.diff(positions, prepend=-1) - 1).tolist() == [int(gap) for _, gap, _ in rows]
    bits = "".join(re.sub("[` ]", "", code) for _, _, code in rows)
    stream = example_bytes("gaps")
    assert int(bits[::-1], 2) == int.from_bytes(bytes(stream), "little")
    assert kernels_for(CPU).gaps_encode(positions, 64).tolist() == stream


def table_rows(section: str) -> dict[str, list[str]]:
    """By their first cell, the other cells of the tables of a section."""
    text = WIRE.split(f"{section}\n", 1)[1].split("\n##", 1)[0]
    return {line.split("|")[1].strip(): line.split("|")[2:-1] for line in text.splitlines() if line.startswith("|")}


def test_the_table_of_bits_for_an_index_holds() -> None:
    """On fewer positions: at 0.01 % a hundred of them, whose mean is uncertain by 1 %."""
    limit, rows = 1_000_000, table_rows("## Gap-coded indices")
    for density, bits in zip(rows["density"], rows["bits each"], strict=True):
        wanted = float(density.replace("%", "")) / 100
        positions = np.flatnonzero(np.random.default_rng(0).random(limit) < wanted)
        stream = kernels_for(CPU).gaps_encode(positions, limit)
        assert 8 * len(stream) / len(positions) == pytest.approx(float(bits), rel=0.01 if wanted > 0.0001 else 0.05)


def test_the_table_of_levels_holds() -> None:
    rows = table_rows("### levels")
    for ranks, digits, bits in zip(rows["N"], rows["rows K"], rows["bits each"], strict=True):
        assert level_rows(int(ranks)) == int(digits)
        assert float(bits) == pytest.approx(32 / int(digits), abs=0.005)


def test_the_table_of_digits_to_a_symbol_holds() -> None:
    row = next(line for line in WIRE.splitlines() if line.startswith("| digits D |"))
    digits = [int(cell) for cell in row.split("|")[2:-1]]
    ranges = (range(1, 2), range(2, 3), range(3, 8), range(8, 128))
    for numbers, expected in zip(ranges, digits, strict=True):
        assert {symbol_digits(n) for n in numbers} == {expected}
