"""What a report sums up."""

from __future__ import annotations

from tests.watched import report_of
from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.groups import SnapshotRow
from tracer.results.watch_report import WatchReport


def group(kind: Kind, size: int) -> SnapshotRow:
    return SnapshotRow(size, 1, kind.name, None, "", "", None, "f", "a.py", 1)


def test_kinds_sum_to_the_groups_the_largest_first() -> None:
    groups = (group(Kind.HELD, 3), group(Kind.PARAMETER, 5), group(Kind.HELD, 4))
    report: WatchReport = report_of(groups=groups)
    assert list(report.by_kind().items()) == [("held", 7), ("parameter", 5)]
