"""Labs and trainings killed at random moments leave nothing behind.

python -m distributed.test_storm 50       more rounds than the suite makes, from the folder tests
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from .lab_traces import namespaces, processes, wait_until

pytestmark = pytest.mark.distributed

TRAIN = ("train", "digits", "--workers", "2", "--steps", "400", "--checkpoint-every", "20")
COMMANDS = (
    ("lab", "--hosts", "3", "--link", "100mbit", "--", "sleep", "60"),
    (*TRAIN, "--link", "100mbit"),
    (*TRAIN, "--method", "fp32"),
    (*TRAIN, "--link", "1gbit", "--servers", "1"),
)
TORCH_CACHE = "torchinductor_"  # which torch makes when it likes, and keeps
LONGEST_S = 10.0  # from the start of a command to its end: from importing torch to the middle of training


def strike(command: tuple[str, ...], after_s: float, number: int, folder: Path, word: str) -> None:
    """Starts a command and ends it at some moment of its life."""
    environment = {**os.environ, "TERNGRAD_TEST_WORD": word, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "terngrad", *command],
        env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    time.sleep(after_s)
    process.send_signal(number)
    process.wait(timeout=60)


def storm(rounds: int, seed: int) -> list[str]:
    """What was left behind, in words; empty if nothing was."""
    chance = random.Random(seed)
    word = f"storm-{os.getpid()}-{seed}"
    before = namespaces()
    left = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        for number in range(rounds):
            command = COMMANDS[number % len(COMMANDS)]
            after_s, kill = (
                chance.uniform(0.1, LONGEST_S),
                chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]),
            )
            strike(command, after_s, kill, folder, word)
            what = f"round {number}: {kill.name} after {after_s:.2f} s of {' '.join(command)}"
            if not wait_until(lambda: not processes(word)):
                left.append(f"{what}: processes {sorted(processes(word))}")
            if not wait_until(lambda: namespaces() <= before):
                left.append(f"{what}: namespaces {sorted(namespaces() - before)}")
            files = sorted(path.name for path in (folder / "tmp").iterdir() if not path.name.startswith(TORCH_CACHE))
            if files:
                left.append(f"{what}: files {files}")
    return left


def test_what_is_killed_at_a_random_moment_leaves_nothing_behind(possible: None) -> None:
    assert storm(rounds=len(COMMANDS), seed=4) == []


if __name__ == "__main__":
    found = storm(int(sys.argv[1]), seed=11)
    print("\n".join(found) or f"{sys.argv[1]} rounds, nothing left behind")
    sys.exit(bool(found))
