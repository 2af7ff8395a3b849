"""Watching changes nothing and the peak is the truth, on programs of many kinds, beside an independent bookkeeper."""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.truth import programs_models, programs_processes, programs_torch, programs_training
from tests.truth.catalogue import entry_of, names
from tests.truth.isolate import in_fresh_process
from tests.truth.verdict import Verdict, judge
from tracer.training import profile_training

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = ("crash", "changed", "kept", "wrong_sum", "wrong_peak")

# Program, column: what is known to be wrong. An entry that is right fails: take it out.
KNOWN_DEFECTS: dict[tuple[str, str], str] = {}

judged = cache(judge)


def _cases() -> list[object]:
    cases = []
    for name in names():
        for column in COLUMNS:
            marks: list[pytest.MarkDecorator] = [pytest.mark.slow] if entry_of(name).slow else []
            if reason := KNOWN_DEFECTS.get((name, column)):
                marks.append(pytest.mark.xfail(strict=True, reason=reason))
            cases.append(pytest.param(name, column, marks=marks, id=f"{name}-{column}"))
    return cases


@pytest.mark.parametrize(("name", "column"), _cases())
def test_the_tracer_tells_the_truth_and_changes_nothing(name: str, column: str) -> None:
    verdict: Verdict = judged(name)
    assert not verdict.broken
    if verdict.crash and column != "crash":
        pytest.fail(f"crashed, so that nothing can be said of {column}")
    assert not getattr(verdict, column)


# ---- by rules, and not by name ---------------------------------------------------------------------------------------


def _names_of_programs() -> set[str]:
    """Names that nobody would choose by chance: of builders, of two words or more, and of classes."""
    builders = {name.rpartition(":")[2] for name in names()}
    modules = (programs_models, programs_processes, programs_torch, programs_training)
    classes = {
        name.strip("_")
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    return {name for name in builders if "_" in name} | {name for name in classes if not name.islower()}


def test_no_program_is_known_to_the_tracer() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tracer/**/*.py")}
    names = _names_of_programs()
    assert len(sources) > 50 and len(names) > 80
    found = {(name, path) for name in names for path, source in sources.items() if re.search(rf"\b{name}\b", source)}
    assert found == set()


def test_no_warning_filter_is_left() -> None:
    """What is silenced while recording is silenced by the tracer's own means, or given back."""
    returned = in_fresh_process(_warning_filters_left)
    assert returned.value == [], returned.error


def _warning_filters_left() -> list[Any]:
    before = list(warnings.filters)
    with tempfile.TemporaryDirectory() as folder, profile_training(nn.Linear(2, 2), save_dir=folder) as session:
        for _ in range(session.schedule.num_steps):
            session.model(torch.ones(1, 2))
            session.step()
    return [each for each in warnings.filters if each not in before]
