"""Watching changes nothing and the peak is the truth, on programs of many kinds, beside an independent bookkeeper."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.truth.catalogue import entry_of, names
from tests.truth.verdict import Verdict, judge

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


def test_no_program_is_known_to_the_tracer() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tracer/**/*.py"))}
    assert sources
    for name in (name for name in names() if "_" in name and ":" not in name):
        assert [path.name for path, source in sources.items() if name in source] == []
