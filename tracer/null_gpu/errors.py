"""Why a null GPU cannot be had here."""

from __future__ import annotations

from tracer.errors import TracerError


class NullGpuError(TracerError):
    """The null GPU cannot be built or started here: no compiler, no CUDA build of torch, another system than Linux."""
