"""The page of a job on the null GPU, of what its ranks have written: side by side, with pages of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tracer.errors import TracerError
from tracer.exporters.files import remove
from tracer.exporters.screen.null_job import of_card
from tracer.results.files import PAGE, RANKS_PAGE, SNAPSHOT
from tracer.results.null_job import NullJob, RankRun
from tracer.results.null_run import CAVEAT
from tracer.runs.ranks import rank_folder


def write_ranks_page(job: NullJob, save_dir: Path, *, tell: Callable[[str], None]) -> None:
    """Write `ranks.html`, where two ranks at least have recorded and have pages themselves; else there is none.

    Args:
        job: The ranks that ran; other ranks' files in the folder are not read.
        save_dir: Where their folders are.
        tell: Takes a line on what was written, or why it was not.
    """
    path = save_dir / RANKS_PAGE
    files = [file for run in job.runs if (file := _recording(run, save_dir)) is not None]
    if len(files) < 2:
        remove(path)
        return
    try:
        if _write(files, path, save_dir, job):
            tell(f"Wrote {path}  (open with {PAGE.read_with})")
    except TracerError as error:  # the answer in the terminal is worth more than its page
        tell(f"Note: {path} was not written: {error}")


def _recording(run: RankRun, save_dir: Path) -> Path | None:
    folder = rank_folder(save_dir, run.rank)
    file = folder / SNAPSHOT.file_name
    is_there = run.peak_bytes is not None and file.exists() and (folder / PAGE.file_name).exists()
    return file if is_there else None


def _write(files: Sequence[Path], path: Path, save_dir: Path, job: NullJob) -> bool:
    from tracer.analysis.snapshots.job import explain_job
    from tracer.runs.job import read_job
    from tracer.runs.job_pages import write_job

    finding = replace(explain_job(read_job(files)), missing=())  # the ranks between were not meant to run
    if finding.worst is None:
        remove(path)
        return False
    run = {"job": job.words, "fullest GPU": " ".join(of_card(job)), "recordings": str(save_dir)}
    write_job(finding, path, run=run, caveat=CAVEAT)
    return True
