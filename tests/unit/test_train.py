"""Training without processes: settings, run folders, checkpoints, counters, and virtual workers."""

from __future__ import annotations

import dataclasses
import io
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import terngrad as tg
from terngrad.errors import ConfigurationError
from terngrad.lab import LabError
from terngrad.recipes import RECIPES, Evaluation, Task
from terngrad.train import (
    Run,
    TrainConfig,
    default_folder,
    figures_of,
    read_run,
    resume,
    show_progress,
    split_methods,
    train,
    without_lab_if_refused,
)
from terngrad.train.checkpoint import Checkpoints
from terngrad.train.methods import connection_of, with_local_clipping
from terngrad.train.record import Progress, Recorder, summarize
from terngrad.train.virtual import OneProcess
from terngrad.train.wire import SocketBytes, SocketMeter
from terngrad.train.workers import seed_forward

FEEDBACK = "terngrad:error_feedback=true"


def nobody(event: dict[str, Any]) -> None:
    """Watches, and takes no notice."""


def message_of(function: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        function()
    return str(caught.value)


# Settings


def test_settings_that_are_not_given_are_the_recipes() -> None:
    recipe = RECIPES["digits"]
    config = TrainConfig.of("digits", seed=3, lr=0.5, workers=None)
    assert (config.steps, config.batch, config.eval_every) == (recipe.steps, recipe.batch, recipe.eval_every)
    assert (config.workers, config.seed, config.method) == (2, 3, "terngrad")
    assert config.optimizer == dataclasses.replace(recipe.optimizer, lr=0.5)


def test_settings_survive_json() -> None:
    config = TrainConfig.of("digits", "powersgd:rank=2", link="100mbit", lr=0.1)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert "another version" in message_of(lambda: TrainConfig.from_json({**config.to_json(), "colour": "red"}))


def test_a_sparse_method_clips_workers_so_that_their_average_is_clipped() -> None:
    """Four independent gradients of norm 0.5 have an average of norm 0.25: so much is each worker's share."""
    config = TrainConfig.of("lstm-wikitext2", "sdagc", virtual_workers=4)
    assert config.optimizer.clip_norm == 0.25
    method = with_local_clipping(tg.from_spec("sdagc"), config.summed_clip_norm)
    assert isinstance(method, tg.SDAGC)
    assert method.clip_norm / 4**0.5 == 0.5
    asked_for = tg.from_spec("sdagc:clip_norm=3")
    assert with_local_clipping(asked_for, config.summed_clip_norm) == asked_for
    assert with_local_clipping(tg.TernGrad(), config.summed_clip_norm) == tg.TernGrad()


def test_recipes_for_speed_alone_are_neither_evaluated_nor_saved() -> None:
    config = TrainConfig.of("alexnet", "fp32")
    assert (config.eval_every, config.checkpoint_every) == (0, 0)


@pytest.mark.parametrize(
    ("recipe", "method", "settings", "words"),
    [
        ("digit", "fp32", {}, ["'digit'", "digits", "lenet-mnist"]),
        ("digits", "ternary", {}, ["'ternary'", "powersgd", "terngrad", "none"]),
        ("digits", "terngrad:clap=2", {}, ["clap=2", "clip=..."]),
        ("digits", "fp16:rank=2", {}, ["fp16 takes no options"]),
        ("digits", "powersgd:rank=0", {}, ["rank=R", "at least 1"]),
        ("digits", "powersgd:rang=2", {}, ["rank=R"]),
        ("digits", "fp32", {"workers": 0}, ["--workers 0", "at least 1"]),
        ("digits", "fp32", {"steps": 0}, ["--steps 0", "at least 1"]),
        ("digits", "fp32", {"lr": -1.0}, ["--lr -1.0", "at least 0"]),
        ("digits", "fp32", {"timeout_s": 0.0}, ["--timeout 0.0"]),
        ("digits", "fp32", {"workers": 3}, ["--batch 64", "multiple of the 3 workers"]),
        ("digits", "fp32", {"colour": "red"}, ["no setting colour"]),
        ("digits", "terngrad", {"exchange": "ring"}, ["'ring'", "two-shot"]),
        ("digits", "terngrad:shared=false", {"exchange": "two-shot"}, ["shared=True"]),
        ("digits", "terngrad", {"servers": 1, "exchange": "two-shot"}, ["--servers 1", "servers are the exchange"]),
        ("digits", "powersgd", {"virtual_workers": 4}, ["'powersgd' is not for", "virtual workers"]),
        ("digits", "none", {"servers": 1}, ["'none' is not for", "parameter servers"]),
        ("digits", "none", {"checkpoint_every": 5}, ["--checkpoint-every 5", "--checkpoint-every 0"]),
        ("digits", "fp32", {"virtual_workers": 4, "link": "1gbit"}, ["--virtual-workers 4", "--link 1gbit"]),
        ("digits", "fp32", {"virtual_workers": 4, "servers": 1}, ["--virtual-workers 4", "--servers 1"]),
        ("digits", "fp32", {"virtual_workers": 4, "vectorize": "maybe"}, ["--vectorize maybe", "auto, on, off"]),
    ],
)
def test_settings_that_cannot_work_are_refused(
    recipe: str, method: str, settings: dict[str, Any], words: list[str]
) -> None:
    message = message_of(lambda: TrainConfig.of(recipe, method, **settings))
    assert [word for word in words if word not in message] == []


def test_options_in_a_list_of_methods_belong_to_the_method_before_them() -> None:
    assert split_methods("fp32,terngrad:clip=2,block=512,fp16") == ["fp32", "terngrad:clip=2,block=512", "fp16"]
    assert split_methods("powersgd,rank=2,terngrad") == ["powersgd:rank=2", "terngrad"]
    assert split_methods("") == []


@pytest.mark.parametrize("method", ["none", "fp32", "fp16", "bf16", "powersgd", "powersgd:rank=4", "terngrad:block=64"])
def test_every_kind_of_method_has_a_connection(method: str) -> None:
    connection = connection_of(method)
    assert connection.depends_on_buckets == (method.partition(":")[0] in ("fp32", "fp16", "powersgd"))


# Run folders


def written(folder: Path, lines: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": "fp32"}))
    (folder / "metrics.jsonl").write_bytes(lines)
    return folder


def test_a_last_line_that_was_torn_off_is_left_out(tmp_path: Path) -> None:
    lines = b'{"event": "start"}\n{"event": "step", "step": 1}\n{"event": "st'
    run = read_run(written(tmp_path / "run", lines))
    assert run.start == {"event": "start"}
    assert run.steps == [{"event": "step", "step": 1}]
    assert run.end is None
    assert run.environment == {}


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "config.json" in message_of(lambda: read_run(tmp_path))
    damaged = written(tmp_path / "run", b'{"event": "start"}\nnonsense\n')
    assert "line 2" in message_of(lambda: read_run(damaged))


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    config = TrainConfig.of("digits", virtual_workers=2)
    message = message_of(lambda: train(config, tmp_path, nobody))
    assert "--out" in message
    assert "--resume" in message


def test_folders_are_named_by_recipe_and_method() -> None:
    assert str(default_folder("digits", "terngrad:clip=2,block=512")).startswith(
        "runs/digits-terngrad_clip=2_block=512-2"
    )


def test_events_beyond_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0, [])
    recorder.write("start")
    kept = recorder.sync()
    recorder.write("step", step=1, loss=float("nan"))
    assert recorder.events()[-1] == {"event": "step", "step": 1, "loss": None}
    recorder.close()
    again = Recorder(tmp_path, kept, [])
    again.write("step", step=7)
    assert [event.get("step") for event in again.events()] == [None, 7]
    assert "still going on" in message_of(lambda: Recorder(tmp_path, 0, []))
    again.close()


def evaluated(*values: float) -> list[dict[str, Any]]:
    return [
        {"event": "eval", "value": value, "step": 10 * n, "seconds": float(n), "bytes_sent": n}
        for n, value in enumerate(values, start=1)
    ]


def test_a_summary_knows_what_is_better() -> None:
    progress = Progress(step=30, seconds=3.0, step_s=[0.1, 0.2, 0.9])
    accuracy = summarize(RECIPES["digits"], progress, evaluated(0.5, 0.98, 0.96))
    assert (accuracy["best"], accuracy["final"], accuracy["steps_to_target"]) == (0.98, 0.96, 20)
    assert (accuracy["median_step_s"], accuracy["steps_per_s"]) == (0.2, 10.0)
    perplexity = summarize(RECIPES["gpt-wikitext2"], progress, evaluated(500.0, 240.0, 260.0))
    assert (perplexity["best"], perplexity["final"], perplexity["seconds_to_target"]) == (240.0, 260.0, 2.0)
    speed = summarize(RECIPES["alexnet"], progress, [])
    assert (speed["best"], speed["final"], speed["bytes_to_target"]) == (None, None, None)


# Checkpoints


def save(folder: Path, step: int, num_ranks: int = 2, interrupted: bool = False) -> None:
    """Saves on all ranks, one after the other; an interrupted one ends before the last rank has written."""
    for rank in reversed(range(1 if interrupted else 0, num_ranks)):
        Checkpoints(folder, rank, num_ranks).save(step, {"step": step, "rank": rank}, lambda: None)


def test_a_checkpoint_counts_when_all_parts_are_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0, 2)
    assert checkpoints.latest() is None
    save(tmp_path, 10)
    save(tmp_path, 20, interrupted=True)
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoints.load(latest, rank=1) == {"step": 10, "rank": 1}
    checkpoints.remove_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 90, 100):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-100", "step-90"]
    (tmp_path / "step-100" / "rank1.pt").unlink()
    latest = Checkpoints(tmp_path, 0, 2).latest()
    assert latest is not None
    assert latest.name == "step-90"
    save(tmp_path, 100)
    assert Checkpoints(tmp_path, 0, 2).latest() == tmp_path / "step-100"


# Counters


@pytest.fixture
def connection() -> Any:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            yield sender, receiver


def move(connection: tuple[socket.socket, socket.socket], count: int) -> None:
    connection[0].sendall(bytes(count))
    assert len(connection[1].recv(count, socket.MSG_WAITALL)) == count


def test_socket_counters_are_the_bytes_that_were_sent(connection: tuple[socket.socket, socket.socket]) -> None:
    meter = SocketMeter()
    meter.start()
    move(connection, 10_000)
    assert meter.read() == SocketBytes(10_000, 10_000)
    move(connection, 5)
    assert meter.stop() == SocketBytes(10_005, 10_005)


def test_what_moves_while_a_meter_stands_still_does_not_count(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    move(connection, 100)
    meter = SocketMeter()
    meter.start()
    move(connection, 20)
    meter.stop()
    move(connection, 300)
    meter.start()
    move(connection, 4)
    assert meter.stop() == SocketBytes(24, 24)


def test_bytes_that_still_wait_to_be_sent_count(connection: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = connection
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender.setblocking(False)
    meter = SocketMeter()
    meter.start()
    handed = 0
    try:
        while True:
            handed += sender.send(bytes(65_536))
    except BlockingIOError:
        pass
    assert meter.read().sent == handed > meter.total.received


def test_a_closed_socket_keeps_what_it_had_at_the_last_look() -> None:
    meter = SocketMeter()
    meter.start()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
            receiver, _ = server.accept()
            with receiver:
                move((sender, receiver), 700)
                meter.read()
    assert meter.stop() == SocketBytes(1400, 1400)


def test_what_a_model_draws_depends_on_seed_step_and_rank_alone() -> None:
    def draw(*numbers: int) -> float:
        seed_forward(*numbers)
        return torch.rand(()).item()

    assert draw(0, 1, 2) == draw(0, 1, 2)
    assert len({draw(0, 1, 2), draw(1, 1, 2), draw(0, 2, 2), draw(0, 1, 3), draw(0, 12, 0), draw(0, 0, 12)}) == 6


# Virtual workers


def settings(**changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "virtual_workers": 4, "steps": 12, "log_every": 3, "eval_every": 6, "checkpoint_every": 4, "measure_every": 5,
    }  # fmt: skip
    method = changes.pop("method", FEEDBACK)
    return TrainConfig.of("digits", method, **{**given, **changes})


def parameters(run: Run) -> dict[str, Tensor]:
    path = run.path / "checkpoints" / f"step-{run.config['steps']}" / "rank0.pt"
    model: dict[str, Tensor] = torch.load(path, weights_only=True)["model"]
    return model


class Stopped(Exception):  # noqa: N818 - it is not an error here
    """Ends a run in the middle."""


def test_a_virtual_run_that_was_stopped_resumes_exactly(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 9:
            raise Stopped

    straight = train(settings(), tmp_path / "straight", nobody)
    with pytest.raises(Stopped):
        train(settings(), tmp_path / "stopped", stop)
    resumed = resume(tmp_path / "stopped", nobody)
    found, wanted = parameters(resumed), parameters(straight)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert [event["step"] for event in resumed.steps] == [3, 6, 9, 12]
    for name in ("loss", "bytes_sent"):
        assert [event[name] for event in resumed.steps] == [event[name] for event in straight.steps]
    assert [event["step"] for event in resumed.layers] == [1, 6, 11]
    assert "come to its end" in message_of(lambda: resume(tmp_path / "stopped", nobody))
    figures = figures_of(resumed)
    assert figures["bytes_sent_per_step"] == figures_of(straight)["bytes_sent_per_step"] > 0


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            raise Stopped

    with pytest.raises(Stopped):
        train(settings(), tmp_path / "run", stop)
    assert [event["step"] for event in resume(tmp_path / "run", nobody).steps] == [3, 6, 9, 12]


def gradients(config: TrainConfig) -> Tensor:
    """The rows of all workers in the first step."""
    task = RECIPES[config.recipe].load()
    torch.manual_seed(0)
    workers = started(config, task, RECIPES[config.recipe].make_model(task))
    workers._gradients(0)
    return workers._average.rows


def started(config: TrainConfig, task: Task, net: nn.Module) -> OneProcess:
    workers = OneProcess(config, task, net)
    workers.start(torch.optim.SGD(net.parameters(), lr=0.1))
    return workers


def test_computing_all_workers_at_once_gives_the_same_gradients() -> None:
    one_by_one, at_once = (gradients(settings(vectorize=how)) for how in ("off", "on"))
    assert torch.allclose(one_by_one, at_once, rtol=1e-4, atol=1e-6)
    assert not torch.equal(one_by_one[0], one_by_one[1])


def test_models_that_do_not_vectorize_are_computed_one_by_one() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    on = TrainConfig.of("resnet20-cifar10", virtual_workers=2, vectorize="on")
    assert "--vectorize off" in message_of(lambda: OneProcess(on, Points(), net))
    started(TrainConfig.of("resnet20-cifar10", virtual_workers=2), Points(), net).compute(0)


class Points(Task):
    """Random points that belong to four classes."""

    def __init__(self) -> None:
        super().__init__(num_train=512, num_outputs=4)

    def examples(self, indices: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(5)
        return torch.randn(self.num_train, 3, generator=generator)[indices], indices % self.num_outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def evaluate(self, model: nn.Module) -> Evaluation:
        return Evaluation(0.0, 0.0)


def test_running_statistics_are_those_of_the_first_worker() -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    config = TrainConfig.of("resnet20-cifar10", virtual_workers=4, batch=32)
    net, alone = make(), make()
    started(config, Points(), net).compute(0)
    alone(Points().batch(0, 0, 0, 4, 32)[0])
    for found, wanted in zip(net.buffers(), alone.buffers(), strict=True):
        assert torch.equal(found, wanted)


# What is shown, and TensorBoard


def test_lines_tell_of_every_evaluation() -> None:
    text = io.StringIO()
    with show_progress(settings(), Console(file=text)) as watcher:
        watcher({"event": "step", "step": 3, "loss": None, "step_s": 0.0125})
        watcher({"event": "eval", "step": 6, "value": 0.5})
    lines = text.getvalue().splitlines()
    assert lines[-1] == f"{FEEDBACK}: step 6/12, loss not finite, 12.5 ms a step, accuracy 50.00%"


def test_a_terminal_gets_a_bar() -> None:
    text = io.StringIO()
    with show_progress(settings(), Console(file=text, force_terminal=True, width=120)) as watcher:
        watcher({"event": "tick", "step": 5})
        watcher({"event": "eval", "step": 6, "value": 0.5})
    assert "6/12" in text.getvalue()
    assert "accuracy 50.00%" in text.getvalue()


def test_tensorboard_logs_are_written_where_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(settings(steps=3, tensorboard=True), tmp_path / "run", nobody)
    (log,) = (tmp_path / "run" / "tensorboard").iterdir()
    for name in (b"step/loss", b"eval/value", b"density/6.weight"):
        assert name in log.read_bytes()


def test_missing_tensorboard_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = message_of(lambda: train(settings(tensorboard=True), tmp_path / "run", nobody))
    assert "pip install tensorboard" in message
    assert list(tmp_path.iterdir()) == []


# Without a lab


def test_a_comparison_can_go_on_without_a_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:
        raise LabError("no root here")

    monkeypatch.setattr(sys.modules["terngrad.train.compare"], "Lab", refuse)
    said: list[str] = []
    asked = [TrainConfig.of("digits", method, link="1gbit") for method in ("fp32", "terngrad")]
    got = without_lab_if_refused(asked, said.append)
    assert [config.link for config in got] == ["none", "none"]
    assert "no root here" in said[0]
    assert without_lab_if_refused(got, said.append) == got
    assert len(said) == 1
