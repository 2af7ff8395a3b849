"""Skips that a complete machine may have: what else is missing there, as a browser or a compiler, fails the run."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest

ONLY_GPU_SKIPS = "ONLY_GPU_TESTS_SKIP"
"""The variable that `.ci/run` sets."""
NO_GPU = "needs a CUDA device, and torch sees none here"
NO_VALUES = "needs values that a device computed, and the null GPU computes none"
_ALLOWED = (
    NO_GPU,
    NO_VALUES,
    "not here",  # files beside the repository
    "root may write anywhere",
    "trl and vLLM bring a torch of their own",
    "gcc-aarch64-linux-gnu",  # another processor's compiler and emulator
    # Of the installed torch.
    "torch keeps",
    "this torch",
    "comes with CUDA 13's wheel",
    "another OpenMP than libgomp",
)


def refused(reason: str) -> str:
    """Return why a run with this skip has failed; empty where it may skip, or where nothing is asked of skips."""
    if ONLY_GPU_SKIPS not in os.environ or any(words in reason for words in _ALLOWED):
        return ""
    return f"Skipped, where only what needs a GPU may skip ({ONLY_GPU_SKIPS} is set): {reason}"


def by_default(cases: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """Parameters of a test, of which those that are not chosen are slow. A tuple is several."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in chosen else pytest.mark.slow)
        for case in cases
    ]
