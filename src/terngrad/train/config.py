"""What a training run is asked to do: every setting has its value here, also those that the recipe has given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import terngrad as tg
from terngrad.errors import ConfigurationError
from terngrad.recipes import RECIPES, SCHEDULES, Optimizer, Recipe
from terngrad.train.methods import NONE, check_method, compensates, may_hold_back

NO_LINK = "none"
AUTO = "auto"
VECTORIZE = (AUTO, "on", "off")
_AT_LEAST_ONE = ("workers", "steps", "batch", "log_every", "threads")
_NOT_NEGATIVE = (
    "servers", "virtual_workers", "seed", "eval_every", "checkpoint_every", "measure_every", "lr", "momentum",
    "weight_decay", "clip_norm",
)  # fmt: skip
OPTIMIZERS = ("sgd", "adam")


def recipe_named(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise ConfigurationError(f"recipe {name!r}: there is {', '.join(RECIPES)}; pass one of these")
    return RECIPES[name]


@dataclass(frozen=True)
class TrainConfig:
    """A run's settings, checked on construction. `of` fills in what the recipe knows."""

    recipe: str
    method: str  # as methods.py takes it
    workers: int
    servers: int  # parameter servers, which do not train; 0: the workers exchange among themselves
    virtual_workers: int  # so many workers computed in one process; 0: real ones
    link: str  # of every host in the lab; "none": workers on this machine, without a limit
    exchange: str
    steps: int
    batch: int  # examples of a step, over all workers
    seed: int
    update: str  # the optimizer's kind
    lr: float
    momentum: float
    weight_decay: float
    clip_norm: float  # of the averaged gradient; sparse methods clip each worker's instead. 0: none
    schedule: str  # of the learning rate
    log_every: int
    eval_every: int  # 0: never
    checkpoint_every: int  # 0: never
    measure_every: int  # 0: never
    threads: int  # of each worker's arithmetic; another number may give other bits
    timeout_s: float  # of a collective
    vectorize: str  # how virtual workers are computed
    tensorboard: bool
    data: str | None  # folder; None: the recipes' own

    @classmethod
    def of(cls, recipe: str, method: str = "terngrad", **settings: Any) -> TrainConfig:
        """Settings for a recipe; those that are None or not given have the recipe's or the usual value."""
        known = recipe_named(recipe)
        given = {name: value for name, value in settings.items() if value is not None}
        unknown = sorted(set(given) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ConfigurationError(f"no setting {', '.join(unknown)}; see TrainConfig for those that there are")
        return cls(**{**_usual(known, method, given), **given, "recipe": recipe, "method": method})

    def __post_init__(self) -> None:
        recipe_named(self.recipe)
        for name in (*_AT_LEAST_ONE, *_NOT_NEGATIVE):
            least = 1 if name in _AT_LEAST_ONE else 0
            self._require(name, getattr(self, name) >= least, f"be at least {least}")
        self._require("seed", self.seed < 2**32, "be less than 2^32")
        self._require("timeout_s", self.timeout_s > 0, "be more than 0 seconds")
        self._require("schedule", self.schedule in SCHEDULES, f"be one of {', '.join(SCHEDULES)}")
        self._require("update", self.update in OPTIMIZERS, f"be one of {', '.join(OPTIMIZERS)}")
        self._require("vectorize", self.vectorize in VECTORIZE, f"be one of {', '.join(VECTORIZE)}")
        self._require("batch", self.batch % self.num_ranks == 0, f"be a multiple of the {self.num_ranks} workers")
        self._require_consistent()
        check_method(self.method, self.exchange, torch_methods=self.uses_torch_methods)

    def _require(self, name: str, ok: bool, what: str) -> None:
        if not ok:
            option = "--optimizer" if name == "update" else "--" + name.removesuffix("_s").replace("_", "-")
            raise ConfigurationError(f"{option} {getattr(self, name)}: it must {what}")

    def _require_consistent(self) -> None:
        if self.virtual_workers:
            for name, value, nothing in (("servers", self.servers, 0), ("link", self.link, NO_LINK)):
                if value != nothing:
                    raise ConfigurationError(
                        f"--virtual-workers {self.virtual_workers} with --{name} {value}: virtual workers are one "
                        f"process and send nothing; leave --{name} out, or pass --workers"
                    )
        if self.servers and self.exchange != AUTO:
            raise ConfigurationError(
                f"--servers {self.servers} with --exchange {self.exchange}: servers are the exchange"
            )
        if self.servers and self.method.partition(":")[0] in tg.Method.registry:
            method = tg.from_spec(self.method)
            if isinstance(method, tg.TernGrad) and not method.shared:
                raise ConfigurationError(
                    f"--servers {self.servers} with --method {self.method}: servers add up codes, which have no sum if "
                    "every worker has its own scaler; leave out shared=false, or --servers"
                )
        if self.update != "sgd" and compensates(self.method):
            raise ConfigurationError(
                f"--method {self.method} with the optimizer {self.update}: it takes momentum over, which it can from "
                "SGD only; pass --optimizer sgd with --lr and --momentum, or give the method compensation=none"
            )
        if self.optimizer.clip_norm and may_hold_back(self.method):
            raise ConfigurationError(
                f"--method {self.method} with --clip-norm {self.optimizer.clip_norm}: a sparse method would have to "
                "clip what each worker adds, all others what has arrived; pass --clip-norm 0, or leave out allow=sparse"
            )
        if self.method == NONE and self.checkpoint_every:
            raise ConfigurationError(
                f"--checkpoint-every {self.checkpoint_every} with --method {NONE}: without communication the workers' "
                "models differ, and there is no one model to save; pass --checkpoint-every 0"
            )

    @property
    def num_ranks(self) -> int:
        """How many workers take part in the average."""
        return self.virtual_workers or self.workers

    @property
    def summed_clip_norm(self) -> float:
        """`clip_norm` is of the average; this is of the sum of all workers' gradients."""
        return self.optimizer.clip_norm * self.num_ranks

    @property
    def num_processes(self) -> int:
        return 1 if self.virtual_workers else self.workers + self.servers

    @property
    def setting(self) -> str:
        """Who trains over what, in words."""
        if self.virtual_workers:
            return f"{self.virtual_workers} virtual workers"
        servers = f" and {self.servers} servers" if self.servers else ""
        over = "no limit on the link" if self.link == NO_LINK else f"links of {self.link}"
        return f"{self.workers} workers{servers}, {over}"

    @property
    def uses_torch_methods(self) -> bool:
        """Whether "fp32", "fp16" and "powersgd" are torch's: it has none for servers and virtual workers."""
        return not self.servers and not self.virtual_workers

    @property
    def optimizer(self) -> Optimizer:
        """The recipe's, with this run's numbers."""
        return dataclasses.replace(
            RECIPES[self.recipe].optimizer,
            kind=self.update,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TrainConfig:
        """The settings that `to_json` gave; refuses those of another version."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(found) != names:
            differing = ", ".join(sorted(set(found) ^ names))
            raise ConfigurationError(f"the run's settings are of another version of terngrad: {differing}")
        return cls(**found)


def _usual(recipe: Recipe, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were not given."""
    eval_every = given.get("eval_every", recipe.eval_every if recipe.metric and method != NONE else 0)
    optimizer = recipe.optimizer
    return {
        "workers": 1 if given.get("virtual_workers") else 2, "servers": 0, "virtual_workers": 0, "link": NO_LINK,
        "exchange": AUTO, "steps": recipe.steps, "batch": recipe.batch, "seed": 0,
        "update": optimizer.kind, "lr": optimizer.lr, "momentum": optimizer.momentum,
        "weight_decay": optimizer.weight_decay, "clip_norm": optimizer.clip_norm, "schedule": recipe.schedule,
        "log_every": 20,
        "eval_every": eval_every, "checkpoint_every": 0 if method == NONE else eval_every, "measure_every": 100,
        "threads": 1, "timeout_s": 1800.0, "vectorize": AUTO, "tensorboard": False, "data": None,
    }  # fmt: skip
