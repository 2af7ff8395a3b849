"""Kinds of a snapshot in the words of a profiled run's reports."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import BASE, FORWARD, MIB, explain
from tests.snapshot.dumps import block, entry, segment
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.categories import CATEGORY_OF_KIND, peak_by_category


def test_every_kind_has_a_category() -> None:
    assert set(CATEGORY_OF_KIND.values()) == {kind.name for kind in Kind}


def test_what_was_there_before_and_is_not_known_has_one_of_its_own(tmp_path: Path) -> None:
    end = [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB), block(BASE + 4 * MIB, MIB)])]
    device = explain(tmp_path / "s", [entry("alloc", BASE + 4 * MIB, MIB, frames=FORWARD)], end)
    assert peak_by_category(device) == (("BEFORE_RECORDING", 3 * MIB), ("UNKNOWN", MIB))


def test_without_a_history_there_is_no_before(tmp_path: Path) -> None:
    device = explain(tmp_path / "s", [], [segment(BASE, 8 * MIB, [block(BASE, 3 * MIB)])])
    assert peak_by_category(device) == (("UNKNOWN", 3 * MIB),)
