"""What all tests share: each workload is recorded once per test run, and gpu tests skip where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import settings

from tests.workloads import Recorded, record_workload

# A busy machine is no fault of the code: no test may fail for the time that it took.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], Recorded]:
    """`recorded(name)`: two cycles of two steps of a workload, recorded at the first request."""
    return cache(record_workload)
