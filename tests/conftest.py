"""What every test shares: deterministic hypothesis, one torch thread, and fixtures for backends and labs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from terngrad.kernels import backend, backends, set_backend
from terngrad.lab import Lab, LabError

settings.register_profile("terngrad", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("terngrad")
torch.set_num_threads(1)


@pytest.fixture(params=backends())
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once with each of the kernels that this machine has."""
    before = backend()
    set_backend(request.param)
    yield request.param
    set_backend(before)


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips, with the reason, where this machine allows no lab."""
    try:
        with Lab(1):
            pass
    except LabError as error:
        pytest.skip(str(error))
