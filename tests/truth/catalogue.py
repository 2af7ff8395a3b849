"""Every program of the harness by name: those written for it, and the workloads that the other tests record."""

from __future__ import annotations

import importlib.util

from tests.truth import (  # noqa: F401  they enter their own
    programs_addresses,
    programs_failing,
    programs_holders,
    programs_jobs,
    programs_loops,
    programs_models,
    programs_processes,
    programs_torch,
    programs_training,
)
from tests.truth.program import PROGRAMS, Entry, Program

_PREFIX = "workload:"


def names(*, on_device: bool = False, of_ranks: bool = True) -> list[str]:
    """Of all programs whose packages are installed; with those that run on a device alone or as ranks, or without."""
    own = [
        name
        for name, entry in PROGRAMS.items()
        if all(map(importlib.util.find_spec, entry.needs))
        and (on_device or not entry.on_device)
        and (of_ranks or not entry.of_ranks)
    ]
    return own + [f"{_PREFIX}{name}" for name in _workloads()]


def entry_of(name: str) -> Entry:
    """A program by its name."""
    if not name.startswith(_PREFIX):
        return PROGRAMS[name]
    return Entry(name, lambda: _from_workload(name.removeprefix(_PREFIX)))


def _workloads() -> list[str]:
    from tests.training_steps import WORKLOADS

    return list(WORKLOADS)


def _from_workload(name: str) -> Program:
    """What its batch is, nobody can say."""
    from tests.training_steps import build_workload

    built = build_workload(name)
    optimizers = [built.optimizer] if built.optimizer else []
    return Program(built.step, built.model, optimizers, batch=None, parameters=list(built.parameters))
