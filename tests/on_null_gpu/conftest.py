"""Two devices of the null GPU for the tests of this folder; where it cannot be built they skip with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null_gpu.started import reason_to_skip
from tests.truth.isolate import Elsewhere
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.null_gpu.cards import CONTEXT_BYTES, H100
from tracer.null_gpu.process import environment

# What is free of it is a multiple of what the driver gives out.
CARD = replace(H100, memory_bytes=(64 << 30) + CONTEXT_BYTES)


@pytest.fixture(scope="session")
def elsewhere() -> Elsewhere:
    """`elsewhere(function, ...)`: what it returns in a fresh process on the null GPU."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    # The profiler gets records of kernels there, whose made-up durations no answer may have.
    variables = {"NULL_GPU_KERNELS": "1", "OMP_NUM_THREADS": "1"}
    # Workspaces that torch keeps, before 2.15, are in no peak.
    without = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"} if are_workspaces_kept() else {}
    return Elsewhere(environment([CARD] * 2) | variables | without)
