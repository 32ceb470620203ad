"""Recipes: a model, its data, a schedule and a target, by name, for training runs that can be compared.

recipe = RECIPES["lenet-mnist"]
task = recipe.load(folder)
torch.manual_seed(0)
model = recipe.make_model(task)
inputs, targets = task.batch(seed=0, step=0, rank=0, world_size=2, size=recipe.batch)

A recipe says what is trained; how many workers there are and how they exchange gradients is up to who trains.
"""

from terngrad.recipes.base import Evaluation, Optimizer, Recipe, Task
from terngrad.recipes.catalogue import RECIPES
from terngrad.recipes.data.cache import DataMissing
from terngrad.recipes.schedules import SCHEDULES

__all__ = ["RECIPES", "SCHEDULES", "DataMissing", "Evaluation", "Optimizer", "Recipe", "Task"]
