"""What a report sums up."""

from __future__ import annotations

from tests.watched import report_of
from tracer.analysis.snapshots.groups import Group
from tracer.analysis.snapshots.sites import Site
from tracer.results.watch_report import WatchReport


def group(kind: str, size: int) -> Group:
    return Group(size, 1, kind, "", Site("f", "a.py", 1), (), False)


def test_kinds_sum_to_the_groups_the_largest_first() -> None:
    groups = (group("held", 3), group("parameter", 5), group("held", 4))
    report: WatchReport = report_of(groups=groups)
    assert list(report.by_kind().items()) == [("held", 7), ("parameter", 5)]
