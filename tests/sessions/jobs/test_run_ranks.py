"""The page that a job on the null GPU leaves beside its ranks."""

from __future__ import annotations

from pathlib import Path

from tests.commands.test_snapshot_job import job
from tests.exporters.page.test_html import data_in
from tracer.null_gpu.cards import devices_of
from tracer.results.files import PAGE
from tracer.results.null_job import NullJob, RankRun
from tracer.results.null_run import CAVEAT
from tracer.sessions.jobs.run_ranks import write_ranks_page

DEVICES = devices_of("8xh100")
RUNS = tuple(RankRun(rank, 0, 1.0, peak_bytes=1) for rank in (0, 3, 7))
JOB = NullJob(DEVICES, 8, RUNS)


def job_with_pages(folder: Path) -> Path:
    """Rank 7 was told to leave out its page."""
    job(folder)
    for rank in (0, 1, 3, 4):
        (folder / f"rank{rank}" / PAGE.file_name).write_text("", "utf-8")
    return folder


def test_ranks_that_ran_are_beside_each_other(tmp_path: Path) -> None:
    folder, said = job_with_pages(tmp_path / "out"), list[str]()
    write_ranks_page(JOB, folder, tell=said.append)
    assert said == [f"Wrote {folder / 'ranks.html'}  (open with a browser)"]
    pages = data_in((folder / "ranks.html").read_text("utf-8"))["pages"]
    assert [page["device"] for page in pages] == ["all ranks", "rank 3"]
    # Ranks 1 and 4 are an earlier job's, and nobody misses those between.
    assert [bar["name"] for bar in pages[0]["ranks"]] == ["rank 0", "rank 3"]
    assert pages[0]["caveat"] == CAVEAT
    assert ["job", "8 ranks on 8 x H100, 79.10 GiB each, 8 to a node: 3 ran"] in pages[0]["run"]
    assert [row[-1] for row in pages[0]["sections"][-1]["tables"][0]["rows"]] == [
        "rank3/memory_snapshot.pkl",
        "rank0/memory_snapshot.pkl",
    ]


def test_one_rank_has_no_others_and_an_earlier_page_goes(tmp_path: Path) -> None:
    folder, said = job_with_pages(tmp_path / "out"), list[str]()
    (folder / "ranks.html").write_text("of an earlier job", "utf-8")
    write_ranks_page(NullJob(DEVICES, 8, (RUNS[0], RUNS[2], RankRun(1, 1, 1.0))), folder, tell=said.append)
    assert said == [] and not (folder / "ranks.html").exists()


def test_a_page_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    folder, said = job_with_pages(tmp_path / "out"), list[str]()
    (folder / "ranks.html").mkdir()
    write_ranks_page(JOB, folder, tell=said.append)
    assert len(said) == 1 and said[0].startswith(f"Note: {folder / 'ranks.html'} was not written: ")
