"""Two devices of the null GPU for the tests of this folder; where it cannot be built they skip with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.elsewhere import Elsewhere
from tests.null_gpu.started import reason_to_skip
from tests.on_null_gpu.small_cards import set_as_new
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.null_gpu.cards import CONTEXT_BYTES, H100
from tracer.null_gpu.process import environment

# What is free of it is a multiple of what the driver gives out.
CARD = replace(H100, memory_bytes=(64 << 30) + CONTEXT_BYTES)


@pytest.fixture(scope="session")
def _elsewhere() -> Iterator[Elsewhere]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    # The profiler gets records of kernels there, whose made-up durations no answer may have.
    process = Elsewhere(environment([CARD] * 2) | {"NULL_GPU_KERNELS": "1"} | _workspaces(), set_as_new)
    yield process
    process.close()


def _workspaces() -> dict[str, str]:
    """Return variables with which no test finds the workspaces of another, which torch keeps before 2.15."""
    return {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"} if are_workspaces_kept() else {}


@pytest.fixture
def elsewhere(_elsewhere: Elsewhere) -> Elsewhere:
    """`elsewhere(function, ...)`: what it returns in a process on the null GPU."""
    return _elsewhere
