"""Pages of single ranks of a job, read where the ranks were: several at a time, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.first_changes import first_changes, with_allocated, with_causes
from tracer.analysis.snapshots.job import JobFinding, RankPeak
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.timeline import device_timeline
from tracer.errors import SnapshotError
from tracer.exporters.page.data import page_data
from tracer.exporters.page.job_page import ranks_to_show, write_job_page
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.results.gpu_sums import GpuSum
from tracer.sessions.jobs.read_recordings import executor_for, num_processes_for
from tracer.sessions.termination import FilesInTurn
from tracer.snapshot.load import load_snapshot

_MOST_SINGLE_PAGES = 6


def write_job(
    finding: JobFinding,
    path: Path,
    *,
    run: Mapping[str, str | int | float],
    dask: str | None = None,
    caveat: str = "",
    gpus: Sequence[GpuSum] | None = None,
) -> None:
    """Write the page of a job, with those of the ranks that a reader wants to look into."""
    single = read_pages(ranks_to_show(finding, _MOST_SINGLE_PAGES), dask=dask)
    with FilesInTurn([path]) as turn, turn.writing(path):
        write_job_page(finding, path, single=single, run=run, caveat=caveat, gpus=gpus)


def read_pages(ranks: Sequence[RankPeak], *, dask: str | None = None) -> dict[str, dict[str, Any]]:
    """The pages of those ranks that can be read, by name; they share the room of one file with their job's."""
    if not ranks:
        return {}
    files = [Path(rank.file) for rank in ranks]
    with executor_for(dask, num_processes_for(files)) as executor:
        futures = [executor.submit(read_page, rank, len(ranks) + 1) for rank in ranks]
        pages = [_page_or_none(future) for future in futures]
    return {rank.name: page for rank, page in zip(ranks, pages, strict=True) if page is not None}


def _page_or_none(future: Future[dict[str, Any] | None]) -> dict[str, Any] | None:
    """None also where the process has died of a rank: the others' pages are there."""
    try:
        return future.result()
    except BrokenExecutor:
        return None


def read_page(rank: RankPeak, num_pages: int) -> dict[str, Any] | None:
    """A rank's page; None if its file can no longer be read."""
    try:
        replayed = replay_snapshot(load_snapshot(Path(rank.file)), device=rank.device)
    except SnapshotError:
        return None
    (device,) = replayed.devices
    timeline = device_timeline(device)
    # Each change is a replay, some seconds of a million entries: of a rank that had room, `snapshot` says it by itself.
    modelled = model_device(device) if rank.out_of_memory else None
    first = first_changes(replayed, device, modelled)
    finding = with_causes(explain_replayed(replayed), {device.state.device: first})
    finding = with_allocated(finding, {device.state.device: modelled})
    run: dict[str, str | int] = {"file": rank.file, "device": rank.device or 0}
    page = snapshot_page(replayed, finding, 0, timeline, run=run, first=first)
    shown = page_data(page, num_pages=num_pages)
    subtitle = f"{page.device}, {page.subtitle}"
    return {**shown, "title": f"Memory of {rank.name}", "subtitle": subtitle, "device": rank.name}
