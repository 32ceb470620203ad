"""The command line: what it prints where, how it ends, and that its page in the documents is what it says."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from examinations import examination, saved

import terngrad
from terngrad.cli import main
from terngrad.cli.own_model import load_own_model
from terngrad.cli.reference import commands, fill
from terngrad.cli.tables import print_figures
from terngrad.errors import ConfigurationError
from terngrad.lab import LabError
from terngrad.perf.saved import Saved
from terngrad.recipes import RECIPES, DataMissing
from terngrad.train import MEANINGS, Outcome, TrainConfig, TrainingFailed, outcome_of, train_as_rank

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
VIRTUAL = ("--virtual-workers=2", "--steps=2", "--eval-every=2")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs the command line in this process: its exit code, and what it wrote to standard output and error."""
    monkeypatch.delenv("RANK", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["terngrad", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        written = capfd.readouterr()
        return int(caught.value.code or 0), written.out, written.err

    yield run
    signal.signal(signal.SIGTERM, before)


# The page


def test_the_page_is_what_help_says() -> None:
    assert fill(PAGE) == PAGE, "run `python -m terngrad.cli.reference docs/cli.md`"


@pytest.mark.parametrize("name", ["", *commands()])
def test_every_command_is_on_the_page(name: str) -> None:
    assert len(re.findall(rf"```text terngrad *{name}\n", PAGE)) == 1


def test_every_exit_code_has_a_meaning() -> None:
    assert list(MEANINGS) == list(Outcome)


def test_the_page_names_every_entry_of_a_run(call: Call, tmp_path: Path) -> None:
    code, _, error = call("train", "digits", *VIRTUAL, f"--out={tmp_path / 'run'}", "--tensorboard")
    assert code == 0, error
    words = set(re.findall(r"`(\w+)`", PAGE))
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        assert {event["event"], *event} - {"event", "layers"} <= words | {"layers"}
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert all(name in PAGE for name in files)


# What goes where


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"terngrad {terngrad.__version__}\n", "")


def test_json_is_all_there_is_on_standard_output(call: Call, tmp_path: Path) -> None:
    code, output, error = call("train", "digits", *VIRTUAL, f"--out={tmp_path / 'run'}", "--json")
    found = json.loads(output)
    assert (code, found["run"], found["steps"]) == (0, str(tmp_path / "run"), 2)
    assert "step 2/2" in error
    code, output, error = call("report", tmp_path / "run", "-o", tmp_path / "page.html", "--json")
    assert json.loads(output)["report"] == str(tmp_path / "page.html")
    assert (code, error) == (0, "")
    assert "digits" in (tmp_path / "page.html").read_text()


def test_results_are_a_table_for_people(call: Call, tmp_path: Path) -> None:
    options = ("--methods=fp32,terngrad:clip=2,block=64", f"--out={tmp_path / 'runs'}", f"--report={tmp_path / 'page'}")
    code, output, _ = call("compare", "digits", *VIRTUAL, *options)
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["fp32", "terngrad:clip=2,block=64"]
    assert rows[0][4] == "1.00"
    assert "2 steps, 2 virtual workers" in output
    assert "ms a step" not in output  # it would be that of all workers together
    assert (tmp_path / "page").exists()


def test_recipes_are_listed(call: Call) -> None:
    _, output, _ = call("recipes")
    assert [name for name in RECIPES if name not in output] == []
    _, output, _ = call("recipes", "--json")
    assert [recipe["name"] for recipe in json.loads(output)] == list(RECIPES)


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "method": "fp32", "metric": "accuracy", "final": 0.5, "best": 0.5, "target": 0.97, "bytes_sent_per_step": 10.0,
        "bytes_received_per_step": 10.0, "ratio": 1.0, "median_step_s": 0.01, "seconds_to_target": None, **changes,
    }  # fmt: skip


def test_tables_of_speed_alone_have_no_quality(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures([figures()], "with")
    assert "not reached" in capsys.readouterr().out
    print_figures([figures(metric="", final=None, target=None, ratio=None)], "without")
    assert not {"accuracy", "not reached"} & set(capsys.readouterr().out.split())


def test_lab_passes_on_commands_and_their_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Result:
        exit_code: int = 7
        link_bytes: tuple[Any, ...] = ()

    asked: dict[str, Any] = {}

    def run_command(hosts: int, link: str, command: list[str], **options: Any) -> Result:
        asked.update(hosts=hosts, link=link, command=command, **options)
        return Result()

    monkeypatch.setattr(sys.modules["terngrad.cli.lab"], "run_command", run_command)
    code, _, _ = call("lab", "--hosts=3", "--link=100mbit", "--kill-host=1", "--after=5", "--", "ls", "--all", "-h")
    assert code == 7
    assert (asked["hosts"], asked["link"], asked["command"]) == (3, "100mbit", ["ls", "--all", "-h"])
    assert (asked["kill_host"], asked["after_s"]) == (1, 5.0)


# How it ends


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "digit"), ["'digit'", "digits"]),
        (("train",), ["no RECIPE", "--resume"]),
        (("train", "digits", "--method=ternary"), ["'ternary'", "terngrad"]),
        (("train", "digits", "--workers=0"), ["--workers 0"]),
        (("train", "--resume=nowhere"), ["nowhere is not a run"]),
        (("train", "--resume=nowhere", "--steps=5"), ["leave out --steps"]),
        (("compare", "digits", "--methods="), ["--methods", "at least one"]),
        (("compare", "digits", "--methods=fp32,fp32"), ["fp32 more than once"]),
        (("report", "nowhere", "-o", "page.html"), ["nowhere is not a run"]),
    ],
)
def test_what_cannot_work_is_said_in_one_line(call: Call, arguments: tuple[str, ...], words: list[str]) -> None:
    code, output, error = call(*arguments)
    assert (code, output) == (Outcome.MISUSED, "")
    assert error.startswith("terngrad: ")
    assert len(error.splitlines()) == 1
    assert [word for word in words if word not in error] == []


def test_unknown_options_are_wrong_usage(call: Call) -> None:
    code, _, error = call("train", "digits", "--speed=fast")
    assert code == Outcome.MISUSED
    assert "--speed" in error


def test_missing_data_has_its_own_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(root: Path) -> Any:
        raise DataMissing("digits: none here")

    monkeypatch.setitem(RECIPES, "digits", dataclasses.replace(RECIPES["digits"], read=read))
    code, _, error = call("train", "digits", *VIRTUAL)
    assert (code, error) == (Outcome.DATA_MISSING, "terngrad: digits: none here\n")


def test_a_lab_that_cannot_be_has_its_own_exit_code_and_leaves_no_run(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**options: Any) -> None:
        raise LabError("no root here")

    monkeypatch.setattr(sys.modules["terngrad.train.start"], "Lab", refuse)
    code, _, error = call("train", "digits", "--link=1gbit", f"--out={tmp_path / 'run'}")
    assert (code, error) == (Outcome.NO_LAB, "terngrad: no root here\n")
    assert not (tmp_path / "run").exists()


def test_failures_have_the_exit_codes_of_what_failed() -> None:
    assert outcome_of(TrainingFailed("rank 1")) == Outcome.FAILED
    assert outcome_of(TrainingFailed("rank 1", Outcome.DATA_MISSING)) == Outcome.DATA_MISSING
    assert outcome_of(RuntimeError()) == Outcome.FAILED


@pytest.mark.parametrize(
    ("settings", "environment", "words"),
    [
        ({"workers": 1}, {"WORLD_SIZE": "1"}, ["MASTER_ADDR, MASTER_PORT is not", "torchrun"]),
        ({"link": "1gbit"}, {}, ["--link in one of several ranks"]),
        ({"virtual_workers": 4}, {}, ["--virtual-workers in one of several ranks"]),
        ({"workers": 2}, {}, ["--workers 2", "3 ranks were started"]),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(
    settings: dict[str, Any], environment: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {"RANK": "0", **(environment or meeting)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        train_as_rank(TrainConfig.of("digits", **settings), Path("run"), print)
    assert [word for word in words if word not in str(caught.value)] == []


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    options = ["--virtual-workers=8", "--vectorize=off", f"--out={tmp_path / 'run'}", "--log-every=1"]
    command = [sys.executable, "-m", "terngrad", "train", "digits", *options]
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # who started the tests may not
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeding) as process:  # noqa: PLW1509
        metrics = tmp_path / "run" / "metrics.jsonl"
        end = time.monotonic() + 60
        while not (metrics.exists() and b'"step"' in metrics.read_bytes()):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == Outcome.INTERRUPTED
    assert "Traceback" not in error


def test_without_its_packages_the_command_line_says_how_to_get_them() -> None:
    program = "import sys; sys.modules['typer'] = None; from terngrad.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "terngrad: the command line needs the package typer; pip install 'terngrad[cli]'\n"


# terngrad model


def test_model_prints_throughput_and_what_bounds_it(call: Call, tmp_path: Path) -> None:
    figure = tmp_path / "model.svg"
    code, out, _ = call(
        "model", "--net", "alexnet", "--workers", "4..16", "--methods", "fp32,sdagc:threshold=3", "--figure", figure
    )
    assert code == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│")][:3] == ["4", "8", "16"]
    assert "bandwidth" in out
    picture = figure.read_text()
    assert picture.startswith("<svg")
    assert "sdagc:threshold=3" in picture


def test_model_as_json_has_a_point_for_every_method_and_number(call: Call) -> None:
    code, out, _ = call("model", "--workers", "1,8", "--methods", "fp16,terngrad-paper", "--json")
    assert code == 0
    points = json.loads(out)["points"]
    assert [(point["method"], point["workers"]) for point in points] == [
        ("fp16", 1), ("fp16", 8), ("terngrad-paper", 1), ("terngrad-paper", 8),
    ]  # fmt: skip
    assert points[3]["speedup"] == pytest.approx(3.05, rel=0.15)  # published
    assert points[3]["always_pays"] or points[3]["pays_below_bits_per_s"] > 1e9


def test_model_takes_a_step_that_the_doctor_saved_to_other_clusters(call: Call, tmp_path: Path) -> None:
    profile = saved(tmp_path / "doctor.json")
    code, out, _ = call("model", "--profile", profile, "--workers", "2,1024", "--json")
    assert code == 0
    points = {(point["method"], point["workers"]): point for point in json.loads(out)["points"]}
    assert set(points) == {(name, n) for name in ("fp32", "ddp-fp16", "terngrad", "fp16") for n in (2, 1024)}
    assert points["fp32", 2]["step_s"] == pytest.approx(examination().predictions["ddp"].step_s)
    assert points["terngrad", 2]["step_s"] == pytest.approx(examination().predictions["terngrad"].step_s)
    served = json.loads(call("model", "--profile", profile, "--workers", "2", "--servers", "1", "--json")[1])["points"]
    assert {point["method"]: point["step_s"] for point in served}["fp32"] > 1.5  # what a bucket costs in plain DDP
    far = json.loads(call("model", "--profile", profile, "--workers", "2", "--link", "8mbit@50ms", "--json")[1])
    near = json.loads(call("model", "--profile", profile, "--workers", "2", "--link", "10gbit@1us", "--json")[1])
    for slow, here, quick in zip(
        far["points"], [p for (_, n), p in points.items() if n == 2], near["points"], strict=True
    ):
        assert slow["step_s"] > here["step_s"] > quick["step_s"]


def test_model_needs_a_link_for_what_was_measured_on_one_rank(call: Call, tmp_path: Path) -> None:
    profile = saved(tmp_path / "alone.json", ranks=1)
    code, _, err = call("model", "--profile", profile)
    assert code == Outcome.MISUSED
    assert "pass --link, such as --link 1gbit" in err
    assert call("model", "--profile", profile, "--link", "1gbit", "--workers", "1,2")[0] == 0


def test_what_might_be_an_error_in_a_slow_link_is_not_taken_to_another_as_what_a_bucket_costs(tmp_path: Path) -> None:
    path = saved(tmp_path / "doctor.json")  # plain DDP waits 0.4 s for its link
    assert set(Saved.read(path).overheads_elsewhere) >= {"ddp", "terngrad"}
    found = json.loads(path.read_text())
    found["trial"]["steps"]["ddp"] = 0.48
    path.write_text(json.dumps(found))
    assert Saved.read(path).overheads["ddp"] > 0
    assert set(Saved.read(path).overheads_elsewhere) == {"terngrad"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(b"\xff\x00", "it is not JSON"), (b"{}", "it has no 'places'"), (b"[]", "its entries are not those of a profile")],
)
def test_a_file_that_is_no_profile_is_refused_in_words(call: Call, tmp_path: Path, text: bytes, wrong: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    code, _, err = call("model", "--profile", path)
    assert code == Outcome.MISUSED
    assert wrong in err


def test_model_of_the_paper_over_a_wide_area_link(call: Call) -> None:
    code, out, _ = call(
        "model", "--net", "vgg-a", "--link", "100mbit@30ms", "--workers", "8..4096", "--methods", "fp32,terngrad"
    )
    assert code == 0
    assert "4,096" in out
    assert "100 Mb/s and 30 ms" in out


@pytest.mark.parametrize("of", ["paper", "profile"])
def test_model_with_parameter_servers(call: Call, tmp_path: Path, of: str) -> None:
    source = ("--profile", saved(tmp_path / "doctor.json")) if of == "profile" else ("--net", "vgg-a")
    options = (*source, "--workers", "64", "--methods", "fp32,terngrad", "--json")
    found = {
        servers: [point["step_s"] for point in json.loads(call("model", *options, "--servers", servers)[1])["points"]]
        for servers in (0, 1, 16)
    }
    assert all(one > many for one, many in zip(found[1], found[16], strict=True))
    assert found[1][0] > found[1][1]  # fp32 and ternary codes
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("--link", "fast"), "--link 'fast'"),
        (("--profile", "nowhere.json"), "terngrad doctor --save"),
        (("--workers", "many"), "--workers 'many'"),
        (("--workers", "0..8"), "--workers '0..8'"),
        (("--workers", "1,x"), "--workers '1,x'"),
        (("--workers", "1..99999"), "at most 16,384"),
        (("--net", "lenet"), "alexnet, googlenet, vgg-a"),
        (("--cluster", "moon"), "moon"),
        (("--methods", "tern"), "tern"),
        (("--figure", "x.png"), "ends in .svg"),
        (("--figure", "nowhere/x.svg"), "there is no folder"),
        (("--profile", "x.json", "--net", "vgg-a"), "--profile with --net"),
    ],
)
def test_model_refuses_what_it_does_not_know(call: Call, arguments: tuple[str, ...], wrong: str) -> None:
    code, _, err = call("model", *arguments)
    assert code == Outcome.MISUSED
    assert wrong in err


# terngrad doctor


def test_doctor_alone_looks_at_this_machine_and_a_model(call: Call, tmp_path: Path) -> None:
    kept = tmp_path / "found.json"
    code, out, _ = call("doctor", "--methods", "terngrad", "--save", kept)
    assert code == 0
    assert "One rank: there is nothing to send" in out
    assert re.search(r"step without communication: \S+ ms \(forward \S+, backward \S+, update \S+\); 8 gradients", out)
    assert re.search(r"│ terngrad +│ +[\d.]+ │ +[\d.]+ │ +(19|20)\.\d │", out)
    found = json.loads(kept.read_text())
    assert len(found["profile"]["gradients"]) == 8
    assert (found["wires"], found["predictions"]) == ([], [])


def test_doctor_takes_a_model_of_the_users_own(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_code.py").write_text(
        "import torch\n"
        "def make():\n"
        "    net = torch.nn.Linear(3, 2)\n"
        "    return net, torch.nn.functional.mse_loss, (torch.ones(4, 3), torch.zeros(4, 2))\n"
        "def wrong():\n"
        "    return 7\n"
        "def frozen():\n"
        "    return torch.nn.Identity(), torch.nn.functional.mse_loss, (torch.ones(1), torch.ones(1))\n"
        "def alone():\n"
        "    return torch.nn.Linear(3, 2), torch.nn.functional.mse_loss, torch.ones(4, 3)\n"
        "def broken():\n"
        "    return 1 / 0\n"
        "def with_loss(loss, width=3):\n"
        "    return torch.nn.Linear(3, 2), loss, (torch.ones(4, width), torch.zeros(4, 2))\n"
        "def vector():\n"
        "    return with_loss(lambda outputs, targets: outputs.sum(1))\n"
        "def number():\n"
        "    return with_loss(lambda outputs, targets: outputs.sum().item())\n"
        "def detached():\n"
        "    return with_loss(lambda outputs, targets: outputs.sum().detach())\n"
        "def elsewhere():\n"
        "    return with_loss(lambda outputs, targets: torch.ones(1, requires_grad=True))\n"
        "def unfit():\n"
        "    return with_loss(torch.nn.functional.mse_loss, width=5)\n"
    )
    (tmp_path / "my_bad_code.py").write_text("def make(:\n")
    (tmp_path / "my_raising_code.py").write_text("import math\nmath.sqrt(-1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, _ = call("doctor", "--model", "my_own_code:make", "--methods", "fp16", "--json")
    assert code == 0
    assert [one["parameter"]["numel"] for one in json.loads(out)["profile"]["gradients"]] == [2, 6]
    wrong = {
        "my_own_code:wrong": "gave int",
        "my_own_code:missing": "no attribute 'missing'",
        "my_own_code:frozen": "no parameter of the model wants a gradient",
        "my_own_code:alone": "the batch is Tensor",
        "my_own_code": "pass MODULE:FUNCTION",
        "my_own_code:torch": "has a module, not a function, 'torch'",
        "my_own_code:broken": "broken() failed: ZeroDivisionError: division by zero (my_own_code.py:12)",
        "my_own_code:vector": "its shape is (4,); take its mean() or sum()",
        "my_own_code:number": "but it is float",
        "my_own_code:detached": "but it has no gradient",
        "my_own_code:elsewhere": "after backward none of them has a gradient",
        "my_own_code:unfit": "forward or the loss failed: RuntimeError: mat1 and mat2",
        "my_bad_code:make": "SyntaxError: invalid syntax (my_bad_code.py, line 1)",
        "my_raising_code:make": "ValueError: math domain error (my_raising_code.py:2)",
    }
    for name, text in wrong.items():
        code, _, err = call("doctor", "--model", name)
        assert (code, text in err, err.count("\n")) == (Outcome.MISUSED, True, 1), (name, err)
    with pytest.raises(ConfigurationError) as raised:
        load_own_model("my_own_code:broken")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    code, _, err = call("doctor", "--model", "no_such_code:make")
    assert (code, "No module named 'no_such_code'" in err) == (Outcome.MISUSED, True)
    code, _, err = call("doctor", "--save", tmp_path / "no" / "such.json")
    assert (code, "there is no folder" in err) == (Outcome.MISUSED, True)
    code, _, err = call("doctor", "imagenet")
    assert (code, "recipe 'imagenet'" in err) == (Outcome.MISUSED, True)
