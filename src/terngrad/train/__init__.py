"""Training runs: recipes trained by workers that exchange gradients, recorded in run folders, resumed exactly.

config = TrainConfig.of("digits", "terngrad", workers=2, link="100mbit")
with show_progress(config) as watcher:
    run = train(config, Path("runs/mine"), watcher)

`read_run` reads what a run has left in its folder.
"""

from terngrad.train.compare import check_comparison, compare, figures_of, split_methods, without_lab_if_refused
from terngrad.train.config import NO_LINK, TrainConfig
from terngrad.train.loop import make_optimizer
from terngrad.train.memory import keep_memory
from terngrad.train.outcome import MEANINGS, Outcome, TrainingFailed, outcome_of
from terngrad.train.progress import metric_text, show_progress
from terngrad.train.runs import Run, default_folder, read_run
from terngrad.train.start import is_rank, resume, resume_as_rank, train, train_as_rank

__all__ = [
    "MEANINGS",
    "NO_LINK",
    "Outcome",
    "Run",
    "TrainConfig",
    "TrainingFailed",
    "check_comparison",
    "compare",
    "default_folder",
    "figures_of",
    "is_rank",
    "keep_memory",
    "make_optimizer",
    "metric_text",
    "outcome_of",
    "read_run",
    "resume",
    "resume_as_rank",
    "show_progress",
    "split_methods",
    "train",
    "train_as_rank",
    "without_lab_if_refused",
]
