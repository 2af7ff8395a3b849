"""FlashInfer's sampler on the null GPU: its kernels, which nvcc would compile at the first call, are not needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from tracer.loaded_modules import when_loaded

SAMPLER_VARIABLE: Final = "VLLM_USE_FLASHINFER_SAMPLER"
LEFT_OUT_VARIABLE: Final = "NULL_GPU_LEFT_OUT_SAMPLER"
"""Set if the null GPU, not the user, has set SAMPLER_VARIABLE to 0."""
_SAMPLING: Final = "sampling"


def leave_out_sampling_kernels() -> None:
    """Replace the kernels of FlashInfer's sampler by no-ops, and let vLLM choose its sampler by its own default.

    The kernels return nothing: they write to tensors that FlashInfer's Python code allocates.
    """
    if os.environ.pop(LEFT_OUT_VARIABLE, None) is not None:
        os.environ.pop(SAMPLER_VARIABLE, None)
    when_loaded("flashinfer.jit.core", _without_sampling_kernels)


def _without_sampling_kernels(core: Any) -> None:
    original = core.JitSpec.build_and_load

    def build_and_load(spec: Any, *arguments: Any, **options: Any) -> Any:
        return _NoKernels() if spec.name == _SAMPLING else original(spec, *arguments, **options)

    core.JitSpec.build_and_load = build_and_load


class _NoKernels:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None
