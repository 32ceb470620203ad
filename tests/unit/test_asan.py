"""No input makes a native kernel read or write outside its buffers: a fuzz under AddressSanitizer and UBSan."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "asan"
FUZZ = Path(__file__).with_name("fuzz_native.py")
KERNELS = [
    "statistics", "ternarize", "mean_shared", "mean_own", "sum_levels", "mean_levels", "sum_symbols", "mean_symbols",
    "error", "accumulate", "select", "restore", "add_back", "scatter_mean", "merge", "gaps_encode",
    "gaps_decode", "entropy_encode", "entropy_decode",
]  # fmt: skip

pytestmark = pytest.mark.asan


@pytest.fixture(scope="module")
def core() -> Path:
    """The sanitized core, as new as its sources."""
    found = sorted(BUILD.glob("_native*.so"))
    if not found:
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        pytest.skip("no core in build/asan: " + ("run `make asan`" if compiler else "there is no C++ compiler"))
    stamp = (BUILD / ".built").stat().st_mtime
    newer = [path.name for path in (ROOT / "csrc").iterdir() if path.stat().st_mtime > stamp]
    assert not newer, f"build/asan is older than {', '.join(newer)}: run `make asan`"
    return found[0]


@pytest.fixture(scope="module")
def environment(core: Path) -> dict[str, str]:
    """Preloads the run-time libraries of the compiler that built the core, which Python itself is not linked with."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    match = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.MULTILINE)
    assert match, "build/asan/CMakeCache.txt names no compiler"
    libraries = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):
        found = subprocess.run([match[1], f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_absolute():
            pytest.skip(f"{match[1]} has no {name} to preload")
        libraries.append(found.stdout.strip())
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }


def run_fuzz(core: Path, environment: dict[str, str], what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ), str(core), what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_no_table_and_no_bytes_make_a_kernel_leave_its_buffers(core: Path, environment: dict[str, str]) -> None:
    result = run_fuzz(core, environment, "250")
    assert result.returncode == 0, result.stderr[-5000:]
    tally = json.loads(result.stdout)
    for kernel in KERNELS:
        assert tally[f"{kernel} accepted"] >= 50
        assert tally[f"{kernel} refused"] >= 10
    assert tally["streams good"] >= 20
    assert tally["streams bad"] >= 20


def test_the_sanitizer_stops_a_read_past_the_end(core: Path, environment: dict[str, str]) -> None:
    result = run_fuzz(core, environment, "over-read")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
