"""What a run ran on: versions, machine, commit, date and command, written by the program."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import terngrad

_HERE = Path(__file__).resolve().parent


def describe_environment() -> dict[str, Any]:
    """Everything needed to say which program ran where, and to run it again."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "terngrad": terngrad.__version__,
            "kernel": f"{platform.system()} {platform.release()}",
        },
        **_source(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "backend": terngrad.backend(),
        "date": now(),
        "command": sys.argv,
    }


def now() -> str:
    """The date and time, as a text that says its time zone."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _git(*command: str) -> str | None:
    """What git says of the source this package is run from; None where it is not run from a checkout."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", *command], cwd=_HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _source() -> dict[str, Any]:
    """The commit, and whether the package differs from it; neither if it merely lies in somebody else's repository."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"commit": None, "modified": None}
    return {
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--", str(_HERE.parent))),
    }


def _cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
