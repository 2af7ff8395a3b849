"""A job on a screen: what it says of ranks, by hand."""

from __future__ import annotations

from tests.analysis.snapshots.test_job import peak
from tracer.analysis.snapshots.job import JobFinding, explain_job
from tracer.exporters.screen.job import alarm_sentences, answer_sentences, job_sections


def planted() -> JobFinding:
    """Twelve ranks of 1000 MiB; 5 ran out of memory with 1300, 9 holds 700, 3 cannot be read and 7 left nothing."""
    ranks = [peak(rank, 1000) for rank in range(14) if rank not in (3, 5, 7, 9)]
    failed = peak(5, 1300, oom="forward (model.py:7): too little.")
    return explain_job([*ranks, failed, peak(9, 700), peak(3, 0, problem="is no pickle")])


def test_by_hand() -> None:
    finding = planted()
    assert alarm_sentences(finding) == ("Rank 5 ran out of memory.", "At forward (model.py:7): too little.")
    assert answer_sentences(finding) == (
        "Worst of 13 ranks: rank 5, with a peak of 1.27 GiB.",
        "10 of them are alike, with a peak of 1000.00 MiB. Odd ones out: 5, 9.",
        "1 recording cannot be read, and there is none of rank 7.",
    )
    groups, lacking = job_sections(finding, ())
    assert [section.title for section in (groups, lacking)] == ["Groups of equal ranks", "What is not there"]
    assert [row[2:4] for row in groups.tables[0].rows] == [(10, "0-2, 4, 6, 8, 10-13"), (1, "5"), (1, "9")]
    assert lacking.tables[0].rows == (("rank 3", "r3", "is no pickle"),)


def test_ranks_that_are_all_alike_need_no_more_words() -> None:
    finding = explain_job([peak(rank, 10) for rank in range(3)])
    assert alarm_sentences(finding) == ()
    assert answer_sentences(finding) == (
        "Worst of 3 ranks: rank 0, with a peak of 10.00 MiB.",
        "All are alike, with a peak of 10.00 MiB.",
    )
    assert [section.title for section in job_sections(finding, ())] == ["Groups of equal ranks"]


def test_several_that_ran_out_are_counted() -> None:
    failed = [peak(rank, 1000 + rank, oom=f"step (train.py:{rank}): full.") for rank in range(3)]
    assert alarm_sentences(explain_job([*failed, peak(3, 990)])) == (
        "3 of 4 ranks (0-2) ran out of memory.",
        "Rank 2, the worst of them: at step (train.py:2): full.",
    )
