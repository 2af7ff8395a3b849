"""A job as a page: what it says of ranks by hand; `test_snapshot_browser.py` opens it."""

from __future__ import annotations

from dataclasses import replace

from tests.analysis.snapshots.test_job import peak
from tracer.analysis.snapshots.job import JobFinding, RankRole, explain_job
from tracer.exporters.page.job_page import job_page, ranks_to_show
from tracer.units import MIB


def planted() -> JobFinding:
    """Twelve ranks of 1000 MiB; 5 ran out of memory with 1300, 9 holds 700, 3 cannot be read and 7 left nothing."""
    ranks = [peak(rank, 1000) for rank in range(14) if rank not in (3, 5, 7, 9)]
    failed = peak(5, 1300, oom="forward (model.py:7): too little.")
    return explain_job([*ranks, failed, peak(9, 700), peak(3, 0, problem="is no pickle")])


def test_by_hand() -> None:
    page = job_page(planted(), {"rank 5"}, run={})
    assert page.alarm == ("Rank 5 ran out of memory.", "At forward (model.py:7): too little.")
    assert page.answer == (
        "Worst of 13 ranks: rank 5, with a peak of 1.27 GiB.",
        "10 of them are alike, with a peak of 1000.00 MiB. Odd ones out: 5, 9.",
        "Beside rank 0, rank 5 has +300.00 MiB activation, most of it made by forward (model.py).",
        "1 recording cannot be read, and there is none of rank 7.",
    )
    assert [(one.rank, one.state) for one in page.ranks if one.state != "readable"] == [
        (3, "unreadable"),
        (7, "missing"),
    ]
    assert [one.rank for one in page.ranks] == list(range(14))
    assert [one.rank for one in page.ranks if one.is_odd] == [5, 9]
    assert [one.rank for one in page.ranks if one.has_page] == [5]
    (failed,) = (one for one in page.ranks if one.ran_out)
    assert (failed.name, failed.bytes, list(failed.kinds.items())) == (
        "rank 5",
        1300 * MIB,
        [("ACTIVATION", 1300 * MIB)],
    )
    assert [section.title for section in page.sections] == [
        "Groups of equal ranks",
        "Rank 5 beside rank 0",
        "What is not there",
        "Every rank",
    ]
    groups, difference, lacking, every = page.sections
    assert [row[2:4] for row in groups.tables[0].rows] == [(10, "0-2, 4, 6, 8, 10-13"), (1, "5"), (1, "9")]
    assert [column.name for column in difference.tables[0].columns[:3]] == ["change", "rank 0", "rank 5"]
    assert difference.sentences == ("Device 0: peak 1000.00 MiB -> 1.27 GiB, +300.00 MiB (+314,572,800 B, +30.0 %).",)
    assert difference.tables[0].is_whole
    assert difference.tables[0].rows[0][:3] == (300 * MIB, 1000 * MIB, 1300 * MIB)
    assert lacking.tables[0].rows == (("rank 3", "r3", "is no pickle"),)
    assert [row[0] for row in every.tables[0].rows][:3] == [1300 * MIB, 1000 * MIB, 1000 * MIB]


def test_every_rank_has_its_part_of_the_job_where_names_tell_it() -> None:
    staged = [replace(peak(rank, 10), role=RankRole(stage=rank % 2, strategies=("FSDP",))) for rank in range(3)]
    every = job_page(explain_job([*staged, peak(3, 9)]), {}, run={}).sections[-1].tables[0]
    assert [column.name for column in every.columns] == [
        "peak",
        "reserved",
        "entries",
        "rank",
        "part of the job",
        "file",
    ]
    assert [row[3:5] for row in every.rows] == [
        ("rank 0", "stage 0, FSDP"),
        ("rank 1", "stage 1, FSDP"),
        ("rank 2", "stage 0, FSDP"),
        ("rank 3", ""),
    ]
    without = job_page(explain_job([peak(rank, 10) for rank in range(3)]), {}, run={}).sections[-1].tables[0]
    assert [column.name for column in without.columns] == ["peak", "reserved", "entries", "rank", "file"]


def test_ranks_that_are_all_alike_need_no_more_words() -> None:
    page = job_page(explain_job([peak(rank, 10) for rank in range(3)]), {}, run={})
    assert page.alarm == ()
    assert page.answer == (
        "Worst of 3 ranks: rank 0, with a peak of 10.00 MiB.",
        "All are alike, with a peak of 10.00 MiB.",
    )
    assert [section.title for section in page.sections] == ["Groups of equal ranks", "Every rank"]


def test_several_that_ran_out_are_counted() -> None:
    failed = [peak(rank, 1000 + rank, oom=f"step (train.py:{rank}): full.") for rank in range(3)]
    page = job_page(explain_job([*failed, peak(3, 990)]), {}, run={})
    assert page.alarm == (
        "3 of 4 ranks (0-2) ran out of memory.",
        "Rank 2, the worst of them: at step (train.py:2): full.",
    )


def test_the_worst_a_typical_and_the_odd_ones_have_pages() -> None:
    finding = planted()
    assert [one.rank for one in ranks_to_show(finding, 6)] == [0, 5, 9]
    assert [one.rank for one in ranks_to_show(finding, 2)] == [0, 5]
    # Of several odd groups each has one before any has two.
    two = explain_job([*(peak(rank, 100) for rank in range(16)), peak(20, 10), peak(21, 10), peak(30, 50)])
    assert [one.rank for one in ranks_to_show(two, 3)] == [0, 20, 30]
    assert [one.rank for one in ranks_to_show(two, 6)] == [0, 20, 21, 30]
