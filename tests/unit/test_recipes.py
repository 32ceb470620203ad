"""Recipes: batches as a function of their arguments, models as published, gradients that vectorize, metrics."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recipe_files
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from terngrad.errors import ConfigurationError
from terngrad.recipes import RECIPES, Optimizer, Recipe, Task, images, tasks
from terngrad.recipes.draws import Purpose, generator_of
from terngrad.recipes.models.normalization import LocalResponseNorm
from terngrad.recipes.models.recurrent import GRUClassifier, LSTMLanguageModel
from terngrad.recipes.models.transformer import GPT
from terngrad.recipes.schedules import SCHEDULES
from terngrad.recipes.tasks import Classification, LanguageModelling, Split

LEARNING = [name for name, recipe in RECIPES.items() if recipe.metric]
SPEED_ONLY = [name for name, recipe in RECIPES.items() if not recipe.metric]
AUGMENTED = ["cifarnet-cifar10", "resnet20-cifar10"]
VECTORIZED = [name for name, recipe in RECIPES.items() if recipe.vectorizes]

PARAMETERS = {  # outputs, parameters
    "digits": (10, 283_786),
    "lenet-mnist": (10, 431_080),
    "cifarnet-cifar10": (10, 1_068_298),
    "resnet20-cifar10": (10, 269_722),
    "lstm-wikitext2": (33_278, 4_557_054),
    "gpt-wikitext2": (33_278, 5_061_120),
    "gru-fsdd": (10, 165_642),
    "alexnet": (1000, 61_100_840),
    "vgg-a": (1000, 132_863_336),
    "googlenet": (1000, 6_998_552),
    "resnet50": (1000, 25_557_032),
}
DOCS = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("data")
    recipe_files.write_all(root)
    return root


@pytest.fixture(scope="module")
def loaded(folder: Path) -> dict[str, Task]:
    """The task of every recipe that learns, on small files of the datasets' layouts."""
    return {name: RECIPES[name].load(folder) for name in LEARNING}


# The catalogue


def test_recipes_come_in_a_fixed_order_by_their_names() -> None:
    assert list(RECIPES) == [
        "digits", "lenet-mnist", "cifarnet-cifar10", "resnet20-cifar10", "lstm-wikitext2", "gpt-wikitext2", "gru-fsdd",
        "alexnet", "vgg-a", "googlenet", "resnet50",
    ]  # fmt: skip
    assert all(recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_target_exactly_if_it_has_a_metric(name: str) -> None:
    recipe = RECIPES[name]
    assert (recipe.target is not None) == bool(recipe.metric) == bool(recipe.eval_every)
    assert recipe.batch % 16 == 0  # shared evenly by 1, 2, 4, 8 or 16 workers
    assert "\n" not in recipe.summary


@pytest.mark.parametrize("name", RECIPES)
def test_models_have_the_parameters_they_are_known_for(name: str) -> None:
    num_outputs, num_parameters = PARAMETERS[name]
    with torch.device("meta"):
        model = RECIPES[name].build(num_outputs)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("name", SPEED_ONLY)
def test_big_models_take_images_of_224_pixels(name: str) -> None:
    with torch.device("meta"):
        outputs = RECIPES[name].build(1000)(torch.empty(2, 3, 224, 224))
    assert outputs.shape == (2, 1000)


@pytest.mark.parametrize("name", LEARNING)
def test_a_model_fits_its_task_and_is_made_from_the_seed_alone(name: str, loaded: dict[str, Task]) -> None:
    recipe, task = RECIPES[name], loaded[name]
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(recipe.make_model(task))
    inputs, targets = task.batch(0, 0, 0, world_size=8, size=recipe.batch)
    losses = [task.loss(model(inputs), targets) for model in models]
    assert torch.equal(*losses)
    assert losses[0].item() == pytest.approx(math.log(task.num_outputs), abs=1.0)  # no better than a guess
    losses[0].backward()
    assert all(parameter.grad is not None for parameter in models[0].parameters())


def test_noise_is_batched_like_any_data() -> None:
    task = RECIPES["resnet50"].load(Path("nowhere"))
    inputs, targets = task.batch(0, 3, 1, world_size=8, size=16)
    assert inputs.shape == (2, 3, 224, 224)
    assert targets.shape == (2,)
    assert float(inputs.abs().max()) <= 1
    assert task.num_outputs == 1000


# Batches


def batch_of(task: Task, **changes: int) -> tuple[Tensor, Tensor]:
    return task.batch(**{"seed": 1, "step": 5, "rank": 1, "world_size": 4, "size": 32, **changes})


def differs(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    return first[0].shape != second[0].shape or not torch.equal(first[0], second[0])


@pytest.mark.parametrize("name", LEARNING)
def test_a_batch_is_a_function_of_its_arguments(name: str, loaded: dict[str, Task], folder: Path) -> None:
    task = loaded[name]
    first = batch_of(task)
    for changes in ({"step": 6}, {"seed": 2}, {"rank": 2}, {"step": 5 + 10 * task.steps_per_epoch(32)}):
        assert differs(batch_of(task, **changes), first)
    fresh = RECIPES[name].load(folder)  # resumes in the middle: nobody asked it before
    for again in (batch_of(task), batch_of(fresh)):
        assert torch.equal(again[0], first[0])
        assert torch.equal(again[1], first[1])


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentation_is_drawn_for_each_step_rank_and_number_of_ranks(name: str, loaded: dict[str, Task]) -> None:
    task = loaded[name]
    indices = torch.zeros(8, dtype=torch.long)
    keys = [(0, 0, 0, 4), (1, 0, 0, 4), (0, 1, 0, 4), (0, 0, 1, 4), (0, 0, 0, 2)]
    drawn = [task.examples(indices, key)[0] for key in keys]
    assert torch.equal(task.examples(indices, keys[0])[0], drawn[0])
    assert all(differs((drawn[0], indices), (other, indices)) for other in drawn[1:])
    assert not torch.equal(drawn[0][0], drawn[0][1])  # nor are the images of a batch treated alike


def numbered(length: int) -> Classification:
    """Example i is the number i."""
    split = Split(torch.arange(length), torch.zeros(length, dtype=torch.long))
    return Classification(split, split, num_outputs=2, prepare=images.as_they_are)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("step", [0, 7, 8, 50])
def test_all_ranks_together_see_the_same_examples_whatever_their_number(world_size: int, step: int) -> None:
    task = numbered(100)
    shares = [task.batch(4, step, rank, world_size, 12)[0] for rank in range(world_size)]
    assert all(len(share) == 12 // world_size for share in shares)
    assert torch.equal(torch.cat(shares), task.batch(4, step, 0, 1, 12)[0])


def test_an_epoch_has_every_example_once_in_an_order_of_its_own() -> None:
    task = numbered(96)
    assert task.steps_per_epoch(12) == 8
    epochs = [torch.cat([task.batch(0, 8 * epoch + step, 0, 1, 12)[0] for step in range(8)]) for epoch in range(2)]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, torch.arange(96))
    assert not torch.equal(*epochs)
    assert not torch.equal(epochs[0], torch.arange(96))


def test_examples_that_fill_no_batch_are_left_out_of_an_epoch() -> None:
    task = numbered(100)
    assert task.steps_per_epoch(30) == 3
    seen = torch.cat([task.batch(0, step, 0, 1, 30)[0] for step in range(3)])
    assert len(seen.unique()) == 90


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 30}, "rank 1 of 4 and a batch of 30: every rank must get the same number"),
        ({"rank": 4}, "rank 4 of 4 and a batch of 32"),
        ({"size": 104}, "a batch of 104: there are 100 examples to train on"),
        ({"size": 0}, "a batch of 0: there are 100 examples"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        batch_of(numbered(100), **changes)


def test_purposes_draw_independently() -> None:
    """Also where the numbers of one are those of the other with zeros appended."""
    draws = [
        torch.randint(2**31, (4,), generator=generator_of(purpose, *numbers)).tolist()
        for purpose in Purpose
        for numbers in ((1, 2), (2, 1), (1, 2, 3, 4, 5))
    ]
    assert len({tuple(draw) for draw in draws}) == len(draws)


# Schedules


def factors(schedule: str, steps: int) -> list[float]:
    recipe = replace(RECIPES["digits"], schedule=schedule)
    return [recipe.factor(step, steps) for step in range(steps)]


def test_schedules_have_their_shapes() -> None:
    assert factors("constant", 3) == [1, 1, 1]
    assert factors("poly", 4) == pytest.approx([1, math.sqrt(0.75), math.sqrt(0.5), 0.5])
    assert factors("cosine", 4) == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert factors("step", 8) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    warm = factors("warmup-cosine", 40)
    assert warm[:3] == pytest.approx([0.5, 1, 1])
    assert warm[2:] == sorted(warm[2:], reverse=True)


@pytest.mark.parametrize("schedule", ["constant", "poly", "cosine", "warmup-cosine", "step"])
@pytest.mark.parametrize("steps", [1, 2, 19, 1000])
def test_no_step_is_without_effect(schedule: str, steps: int) -> None:
    assert all(0 < factor <= 1 for factor in factors(schedule, steps))


def test_a_schedule_or_a_step_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Recipe\(schedule='linear'\): schedule must be one of constant, poly"
    ):
        replace(RECIPES["digits"], schedule="linear")
    with pytest.raises(ConfigurationError, match="step 10 of a run of 10: steps are counted from 0 to 9"):
        RECIPES["digits"].factor(10, 10)


# Evaluation


class Constant(nn.Module):
    """The same scores for whatever it is given; remembers in which mode it was called."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.scores.expand(*inputs.shape, -1)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_gradients_and_restores_the_mode(training: bool) -> None:
    model = Constant(torch.zeros(2)).train(training)
    numbered(600).evaluate(model)
    assert set(model.modes) == {(False, False)}
    assert model.training == training
    assert torch.is_grad_enabled()


def test_accuracy_and_loss_are_means_over_the_whole_test_split() -> None:
    train = Split(torch.zeros(4), torch.zeros(4, dtype=torch.long))
    test = Split(torch.zeros(601), (torch.arange(601) < 151).long())  # more than two batches, the last one short
    evaluation = Classification(train, test, 2, images.as_they_are).evaluate(Constant(torch.tensor([0.0, 1.0])))
    assert evaluation.value == pytest.approx(151 / 601)
    wrong, right = math.log(1 + math.e), math.log(1 + math.e) - 1
    assert evaluation.loss == pytest.approx((450 * wrong + 151 * right) / 601, rel=1e-5)


def text_of(length: int, max_valid_windows: int = 10) -> LanguageModelling:
    words = torch.arange(length, dtype=torch.int32) % 50
    return LanguageModelling(words, words, num_words=50, window=7, max_valid_windows=max_valid_windows)


def test_the_perplexity_of_a_guess_is_the_number_of_words() -> None:
    evaluation = text_of(1000).evaluate(Constant(torch.zeros(50)))
    assert evaluation.value == pytest.approx(50)
    assert evaluation.loss == pytest.approx(math.log(50))


def test_perplexity_is_measured_on_so_many_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EVALUATION_TOKENS", 21)  # three windows at a time
    model = Constant(torch.zeros(50))
    text_of(1000, max_valid_windows=10).evaluate(model)
    assert len(model.modes) == 4


def test_targets_are_the_words_that_follow() -> None:
    task = text_of(500)
    assert task.num_train == 71
    inputs, targets = task.batch(0, 0, 0, 1, 8)
    assert inputs.shape == targets.shape == (8, 7)
    assert torch.equal(targets, (inputs + 1) % 50)
    assert inputs.dtype == targets.dtype == torch.long


def test_a_diverged_model_has_a_finite_or_infinite_perplexity_and_no_error() -> None:
    scores = torch.full((50,), -1e6)
    scores[0] = 0
    assert text_of(1000).evaluate(Constant(scores)).value == math.inf
    assert math.isnan(text_of(1000).evaluate(Constant(scores * math.nan)).value)


# Models


def test_recurrent_models_start_every_sequence_from_zero() -> None:
    torch.manual_seed(0)
    lstm, words = LSTMLanguageModel(20, width=8, num_layers=2), torch.randint(20, (3, 5))
    gru, frames = GRUClassifier(4, num_features=6, width=8, num_layers=2), torch.randn(3, 5, 6)
    for model, inputs in ((lstm, words), (gru, frames)):
        alone = torch.cat([model(inputs[row : row + 1]) for row in range(3)])
        assert torch.allclose(model(inputs), alone, atol=1e-6)


@pytest.mark.parametrize("build", [lambda: GPT(20, 8, 2, 2, context=6), lambda: LSTMLanguageModel(20, 8, 2)])
def test_a_language_model_does_not_see_what_follows(build: Any) -> None:
    torch.manual_seed(0)
    model, words = build(), torch.randint(20, (2, 6))
    other = words.clone()
    other[:, 3:] = (other[:, 3:] + 1) % 20
    assert torch.allclose(model(words)[:, :3], model(other)[:, :3], atol=1e-6)
    assert not torch.allclose(model(words)[:, 3:], model(other)[:, 3:], atol=1e-3)


@pytest.mark.parametrize(("size", "alpha", "k"), [(9, 0.001, 1.0), (5, 1e-4, 1.0), (3, 2.0, 0.5)])
def test_local_response_norm_is_that_of_torch(size: int, alpha: float, k: float) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(2, 11, 4, 5)).requires_grad_()
    weights = torch.randn(2, 11, 4, 5)
    ours, theirs = LocalResponseNorm(size, alpha, k), nn.LocalResponseNorm(size, alpha, beta=0.75, k=k)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    gradients = [torch.autograd.grad((norm(x) * weights).sum(), x)[0] for norm in (ours, theirs)]
    assert torch.allclose(*gradients, atol=1e-5)


# Gradients of many workers at once


def gradients_one_by_one(model: nn.Module, task: Task, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """For each parameter, a row for each worker."""
    rows = []
    for inputs, targets in batches:
        model.zero_grad()
        task.loss(model(inputs), targets).backward()
        rows.append([parameter.grad for parameter in model.parameters()])
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def gradients_at_once(model: nn.Module, task: Task, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return task.loss(functional_call(model, values, (inputs,)), targets)

    inputs, targets = (torch.stack(parts) for parts in zip(*batches, strict=True))
    return list(vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets).values())


@pytest.mark.parametrize("name", VECTORIZED)
@pytest.mark.parametrize("world_size", [4, 16])
def test_vectorized_gradients_are_those_of_the_workers(name: str, world_size: int, loaded: dict[str, Task]) -> None:
    task = loaded[name]
    torch.manual_seed(0)
    model = RECIPES[name].make_model(task)
    batches = [task.batch(0, 0, rank, world_size, 16) for rank in range(world_size)]
    pairs = zip(gradients_at_once(model, task, batches), gradients_one_by_one(model, task, batches), strict=True)
    for vectorized, expected in pairs:
        assert torch.allclose(vectorized, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


# Images


def ramp(length: int, size: int) -> Tensor:
    """Pixels that tell where they are: row * size + column."""
    return torch.arange(float(size * size)).view(1, 1, size, size).expand(length, 3, size, size)


def test_crops_are_taken_out_whole_from_every_place() -> None:
    crops = images.random_crop(ramp(500, 8), 6, generator_of(Purpose.AUGMENTATION, 0))
    corners = crops[:, 0, 0, 0]
    assert torch.equal(crops, corners.view(-1, 1, 1, 1) + ramp(500, 8)[:, :, :6, :6])
    assert sorted(corners.unique().tolist()) == [8 * row + column for row in range(3) for column in range(3)]


def test_about_half_of_the_images_are_flipped() -> None:
    flipped = images.random_flip(ramp(1000, 4), generator_of(Purpose.AUGMENTATION, 0))
    is_flipped = flipped[:, 0, 0, 0] == 3
    assert torch.equal(flipped[is_flipped], ramp(1000, 4)[is_flipped].flip(3))
    assert torch.equal(flipped[~is_flipped], ramp(1000, 4)[~is_flipped])
    assert 400 < int(is_flipped.sum()) < 600


def test_cifarnet_sees_standardized_images_of_24_pixels() -> None:
    stored = recipe_files.random_bytes(5, 10, 3, 32, 32)
    seen = (images.distort(stored, generator_of(Purpose.AUGMENTATION, 0)), images.central_crop_standardized(stored))
    for batch in seen:
        assert batch.shape == (10, 3, 24, 24)
        assert torch.allclose(batch.mean(dim=(1, 2, 3)), torch.zeros(10), atol=1e-5)
        assert torch.allclose(batch.std(dim=(1, 2, 3), correction=0), torch.ones(10), atol=1e-5)
    middle = stored[:, :, 4:28, 4:28].float()
    assert torch.allclose(seen[1], images.standardize_each(middle))


def test_a_flat_image_stays_flat() -> None:
    assert torch.equal(images.standardize_each(torch.full((2, 3, 4, 4), 7.0)), torch.zeros(2, 3, 4, 4))


def test_contrast_keeps_the_mean_of_each_colour() -> None:
    original = recipe_files.random_bytes(6, 2, 3, 8, 8).float()
    changed = images.change_contrast(original, torch.tensor([0.5, 1.5]).view(2, 1, 1, 1))
    assert torch.allclose(changed.mean(dim=(2, 3)), original.mean(dim=(2, 3)), atol=1e-3)
    spread = changed.std(dim=(2, 3)) / original.std(dim=(2, 3))
    assert torch.allclose(spread, torch.tensor([[0.5], [1.5]]).expand(2, 3), atol=1e-4)


def test_resnet_sees_shifted_images_with_zeros_beyond_the_edge() -> None:
    stored = torch.full((200, 3, 32, 32), 255, dtype=torch.uint8)
    seen = images.crop_and_flip(stored, generator_of(Purpose.AUGMENTATION, 0))
    assert seen.shape == stored.shape
    white = images.standardize_colours(stored)[0, 0, 0, 0]
    assert set(seen[:, 0].unique().tolist()) == {0.0, white.item()}
    shifted = (seen[:, 0] == 0).any(dim=(1, 2))
    assert 180 < int(shifted.sum()) < 200  # all but one in 81


# Learning


def train(recipe: Recipe, task: Task, steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = recipe.make_model(task)
    settings = recipe.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = settings.lr * recipe.factor(step, steps)
        inputs, targets = task.batch(0, step, 0, 1, recipe.batch)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def test_the_digits_are_learnt_within_two_hundred_steps() -> None:
    recipe = RECIPES["digits"]
    task = recipe.load()
    assert task.evaluate(train(recipe, task, steps=200)).value > 0.95


# docs/recipes.md


def documented_rows() -> dict[str, list[str]]:
    """Cells of the first table, by recipe."""
    lines = DOCS.split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows if len(row) == 9}


def in_words(settings: Optimizer) -> str:
    words = [f"{'Adam' if settings.kind == 'adam' else 'SGD'} {number(settings.lr)}"]
    if settings.momentum:
        words.append(f"momentum {number(settings.momentum)}")
    if settings.weight_decay:
        words.append(f"decay {number(settings.weight_decay)}")
    if settings.clip_norm:
        words.append(f"clipped to {number(settings.clip_norm)}")
    return ", ".join(words)


def number(value: float) -> str:
    return f"{value:g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def test_the_documented_recipes_are_those_of_the_code() -> None:
    assert list(documented_rows()) == list(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_documented_numbers_are_those_of_the_code(name: str) -> None:
    recipe = RECIPES[name]
    _, parameters, _, batch, steps, optimizer, schedule, target = documented_rows()[name]
    assert int(parameters.replace(",", "")) == PARAMETERS[name][1]
    assert (int(batch), int(steps.replace(",", ""))) == (recipe.batch, recipe.steps)
    assert optimizer == in_words(recipe.optimizer)
    assert schedule == recipe.schedule
    digits = ".2f" if recipe.metric == "accuracy" else ".0f"
    assert target == ("" if recipe.target is None else f"{recipe.metric} {recipe.target:{digits}}")


def test_the_documented_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.startswith("1.0 Evaluation(value=")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_documented(name: str) -> None:
    assert f"\n| `{name}` | " in DOCS
