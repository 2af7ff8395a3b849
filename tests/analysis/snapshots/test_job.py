"""Ranks beside each other: groups, odd ones, missing ones, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.snapshots.test_findings import BASE, FORWARD, MIB, load
from tests.snapshot.dumps import block, entry, segment, snapshot
from tracer.analysis.snapshots.diff import PeakSide
from tracer.analysis.snapshots.job import JobFinding, RankPeak, explain_job, rank_of, rank_peak


def peak(rank: int | None, size: int, *, oom: str = "", problem: str = "", kind: str = "activation") -> RankPeak:
    side = PeakSide({(kind, ("forward (model.py)",)): (size * MIB, 1)})
    kinds = ((kind, size * MIB),)
    return RankPeak(f"r{rank}", rank, 0, 9, size * MIB, size * MIB, kinds, side, oom, problem)


def numbers(finding: JobFinding) -> list[tuple[list[int | None], bool]]:
    return [([one.rank for one in group.ranks], group.is_odd) for group in finding.groups]


def test_equal_ranks_are_one_group_and_few_others_are_odd() -> None:
    """64 ranks of 1000 MiB with a little noise; 37 holds 300 more, 5 half as much, and 9 the same in another kind."""
    ranks = [peak(rank, 1000 + rank % 5) for rank in range(64) if rank not in (5, 9, 37)]
    finding = explain_job([peak(37, 1300), *ranks, peak(5, 500), peak(9, 1000, kind="held")])
    assert [len(group.ranks) for group in finding.groups] == [61, 1, 1, 1]
    assert sorted(one.rank or 0 for group in finding.groups if group.is_odd for one in group.ranks) == [5, 9, 37]
    assert finding.worst is not None and finding.worst.rank == 37
    assert finding.typical is not None and finding.typical.rank == 0
    assert finding.difference is not None and finding.difference.bytes == 300 * MIB
    assert finding.missing == ()


def test_stages_of_a_pipeline_are_groups_and_none_is_odd() -> None:
    finding = explain_job([peak(rank, 1000 * (1 + rank // 4)) for rank in range(16)])
    assert [odd for _, odd in numbers(finding)] == [False] * 4
    # Of groups of one size the one with the largest peak comes first: what is typical is the worst then.
    assert finding.typical is not None and finding.typical.rank == 12
    assert finding.difference is None


def test_who_ran_out_of_memory_is_the_worst_whatever_others_hold() -> None:
    finding = explain_job([peak(0, 1000), peak(1, 1001), peak(2, 990, oom="forward: too little")])
    assert finding.worst is not None and finding.worst.rank == 2
    assert numbers(finding) == [([0, 1], False), ([2], False)]


def test_ranks_without_a_recording_and_those_that_cannot_be_read() -> None:
    finding = explain_job([peak(0, 10), peak(1, 0, problem="broken"), peak(4, 10)])
    assert finding.missing == (2, 3)
    assert [one.rank for one in finding.unreadable] == [1]
    assert numbers(finding) == [([0, 4], False)]
    assert explain_job([]).worst is None


def test_files_without_numbers_miss_nobody() -> None:
    assert explain_job([peak(None, 10), peak(7, 10)]).missing == ()


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("out/rank3/memory_snapshot.pkl", 3), ("snapshot_rank_12.pickle", 12), ("rank-7.pkl", 7), ("memory_5.pkl", 5),
        ("node2/rank11/s.pkl", 11), ("memory_snapshot.pkl", None), ("host1/mem.pkl", None),
    ],
)  # fmt: skip
def test_names_tell_the_rank(file: str, rank: int | None) -> None:
    assert rank_of(file) == rank


@given(st.lists(st.integers(1, 10_000), max_size=40))
def test_every_rank_is_in_one_group(sizes: list[int]) -> None:
    finding = explain_job([peak(number, size) for number, size in enumerate(sizes)])
    placed = sorted(one.rank or 0 for group in finding.groups for one in group.ranks)
    assert placed == list(range(len(sizes)))
    for group in finding.groups:
        first = group.ranks[0].peak_bytes
        assert all(abs(one.peak_bytes - first) <= 0.02 * max(one.peak_bytes, first) for one in group.ranks)


def test_a_recording_is_summed_up(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, MIB, frames=FORWARD)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 2 * MIB, [block(BASE, MIB, frames=FORWARD)])]))
    found = rank_peak(loaded, "rank3.pkl")
    assert (found.rank, found.device, found.peak_bytes, found.reserved_bytes) == (3, 0, MIB, 2 * MIB)
    assert sum(size for size, _ in found.side.by_key.values()) == sum(dict(found.kinds).values()) == MIB
    assert rank_peak(load(tmp_path / "e", snapshot([])), "empty.pkl").device is None
