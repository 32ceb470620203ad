"""`terngrad recipes`: what can be trained."""

from __future__ import annotations

import dataclasses

from rich.table import Table

from terngrad.cli import options
from terngrad.recipes import RECIPES, Recipe
from terngrad.train import metric_text


def recipes(json: options.Json = False) -> None:
    """List the recipes: what is trained, on what, and what counts as reached."""
    if json:
        options.write_json([_described(recipe) for recipe in RECIPES.values()])
        return
    table = Table(title="recipes", title_justify="left")
    for heading in ("name", "what", "target", "batch", "steps"):
        table.add_column(heading, justify="right" if heading in ("batch", "steps") else "left")
    for recipe in RECIPES.values():
        target = f"{recipe.metric} {metric_text(recipe.metric, recipe.target)}" if recipe.metric else "speed only"
        table.add_row(recipe.name, recipe.summary, target, str(recipe.batch), f"{recipe.steps:,}")
    options.console().print(table)


def _described(recipe: Recipe) -> dict[str, object]:
    names = ("name", "summary", "metric", "target", "batch", "steps", "eval_every", "schedule", "vectorizes")
    found = {name: getattr(recipe, name) for name in names}
    return {**found, "optimizer": dataclasses.asdict(recipe.optimizer)}
