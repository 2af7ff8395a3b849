"""`torch-timeline snapshot`: what filled each device, from an allocator snapshot made anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.common import (
    THRESHOLD_EXCEEDED,
    check_outputs,
    errors_for_people,
    page_to_open,
    say_all,
    show_page,
    snapshot_path,
)
from tracer.commands.options import OUTPUTS, AsJson, Html, Open, Top, checked_size, number, option
from tracer.errors import MissingPackageError, OutputError, SnapshotError, TracerError
from tracer.exporters.screen.next_commands import after_job, after_snapshot
from tracer.exporters.screen.terminal import print_json, screen
from tracer.results.files import MEMORY_REPORT, PAGE
from tracer.sessions.termination import FilesInTurn
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
    from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding


_OTHER_FILE = "Name another file with --html or --sqlite."
ALLOCATOR = "Other allocator settings, another GPU"


@dataclass(frozen=True)
class Tries:
    """Replays of the recording under other settings, or on another GPU."""

    settings: Sequence[str] = ()
    gpu_memory: str | None = None


def snapshot(
    file: Annotated[
        list[Path],
        typer.Argument(
            help="A pickle of torch.cuda.memory._snapshot(), or a --save-dir; of a job several, their folder, or a "
            "pattern in quotes."
        ),
    ],
    device: Annotated[int | None, number("Index of the only device to look at.", least=0)] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Replay under other PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True. Repeatable.",
            ALLOCATOR,
            metavar="<settings>",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        option(
            "Replay on a GPU of this size, such as 16GiB; exit with 3 if it does not run there.",
            ALLOCATOR,
            metavar="<size>",
        ),
    ] = None,
    dask: Annotated[
        str | None, option("Read a job's recordings on the workers of this Dask scheduler.", metavar="<address>")
    ] = None,
    html: Html = None,
    open_: Open = False,
    sqlite: Annotated[
        Path | None, option("Also write the memory report of that device.", OUTPUTS, metavar="<path>")
    ] = None,
    as_json: AsJson = False,
    top: Top = 10,
) -> None:
    """Explain an allocator snapshot made anywhere.

    What filled each device at its peak, and why it ran out. Several recordings are the
    ranks of a job: which are alike, which are odd, and what the worst one has more.
    """
    with errors_for_people():
        for path in file:
            if str(path).startswith(("http:/", "https:/", "s3:/", "gs:/")):
                raise SnapshotError(f"{path.name} is named by an address.", hint="Download it, and name the file.")
        if is_job(file):
            about_one = {"html": html, "open": open_ or None, "sqlite": sqlite, "gpu-memory": gpu_memory}
            for name, value in about_one.items():
                if value is not None:
                    raise TracerError(f"--{name} is about one recording.", hint="Name the file of one rank.")
            _answer_job(file, device=device, dask=dask, as_json=as_json, top=top)
            return
        html = page_to_open(html, is_opened=open_)
        with screen() as console:
            shown = show_snapshot(
                file[0],
                console,
                device=device,
                top=top,
                as_json=as_json,
                html=html,
                sqlite=sqlite,
                tries=Tries(settings or (), gpu_memory),
            )
            readers = {html: PAGE.read_with, sqlite: MEMORY_REPORT.read_with}
            say_all(f"Wrote {path}  (open with {reader})" for path, reader in readers.items() if path is not None)
        if html is not None and open_:
            show_page(html)
        if not as_json:
            say_all(_next(shown, file[0], has_page=html is not None))
    if not shown.runs:
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _answer_job(paths: Sequence[Path], *, device: int | None, dask: str | None, as_json: bool, top: int) -> None:
    """Explain the recordings of a job."""
    from tracer.analysis.snapshots.job import explain_job
    from tracer.exporters.json_documents.job import job_json
    from tracer.exporters.screen.job import print_job
    from tracer.sessions.jobs.read_recordings import read_job, recordings

    files = recordings(paths)
    finding = explain_job(read_job(files, device=device, dask=dask))
    if finding.worst is None or finding.typical is None:
        first = finding.unreadable[0]
        which = "The recording cannot" if len(files) == 1 else f"None of {len(files):,} recordings can"
        raise SnapshotError(f"{which} be read. {first.file}: {first.problem}")
    with screen() as console:
        if as_json:
            print_json(job_json(finding), console)
        else:
            print_job(finding, console, top=top)
    if not as_json:
        say_all(after_job(finding.worst.file, finding.typical.file, paths))


def _next(shown: ExplainedSnapshot, path: Path, *, has_page: bool) -> tuple[str, ...]:
    devices = shown.finding.failed_first
    return after_snapshot(
        path,
        [device.device for device in devices],
        has_failed=any(device.oom for device in devices),
        has_page=has_page,
        has_settings=not shown.can_try_settings,
    )


def is_job(paths: Sequence[Path]) -> bool:
    """Whether these are the recordings of several ranks: several paths, a pattern, or a folder of recordings."""
    if len(paths) != 1:
        return True
    (path,) = paths
    return (
        not snapshot_path(path).exists()
        if path.is_dir()
        else not path.exists() and set(path.name) & set("*?[") != set()
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedSnapshot:
    """A snapshot, and what was found in it."""

    replayed: ReplayedSnapshot  # The snapshot
    finding: SnapshotFinding  # What filled its devices
    allocator: Sequence[AllocatorFinding]  # Allocator findings of each device

    @property
    def runs(self) -> bool:
        """Whether the recording runs on the GPU asked about, on every device of it; True if none was."""
        return all(finding.what_if is None or finding.what_if.runs for finding in self.allocator)

    @property
    def can_try_settings(self) -> bool:
        """Whether other settings of the allocator have not been tried, and can be."""
        return any(finding.modelled is not None and finding.what_if is None for finding in self.allocator)


def show_snapshot(
    path: Path,
    console: Console,
    *,
    device: int | None = None,
    top: int = 10,
    as_json: bool = False,
    html: Path | None = None,
    sqlite: Path | None = None,
    tries: Tries = Tries(),
) -> ExplainedSnapshot:
    """Explain a snapshot on a console, as text or as JSON, and in files.

    A page and a database are about one device: the one named, or else the worst, see `SnapshotFinding.worst`.
    """
    outputs = [out for out in (html, sqlite) if out is not None]
    with _hint_for_outputs():
        check_outputs(outputs, [snapshot_path(path)], hint=_OTHER_FILE)
    explained = _explained(path, device, tries)
    if outputs:
        with _hint_for_outputs():
            _write(explained, html=html, sqlite=sqlite, file=path)
    if as_json:
        _print_json(explained, console, path)
    else:
        _print(explained, console, path, top)
    return explained


def _explained(path: Path, device: int | None, tries: Tries) -> ExplainedSnapshot:
    memory = checked_size(tries.gpu_memory)
    settings = _checked_settings(tries.settings)
    snapshot = load_snapshot(snapshot_path(path))
    from tracer.analysis.snapshots.allocator_finding import explain_allocator, with_model
    from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot

    replayed = replay_snapshot(snapshot, device=device)
    allocator = explain_allocator(replayed, settings=settings, gpu_memory=memory)
    return ExplainedSnapshot(replayed, with_model(explain_replayed(replayed), allocator), allocator)


def _print_json(explained: ExplainedSnapshot, console: Console, path: Path) -> None:
    from tracer.analysis.snapshots.timeline import step_levels
    from tracer.exporters.json_documents.header import json_value
    from tracer.exporters.json_documents.snapshot import snapshot_json

    document = snapshot_json(
        explained.finding,
        file=str(path),
        allocator=explained.allocator,
        more={device.state.device: {"steps": json_value(step_levels(device))} for device in explained.replayed.devices},
    )
    print_json(document, console)


def _print(explained: ExplainedSnapshot, console: Console, path: Path, top: int) -> None:
    from tracer.analysis.snapshots.timeline import step_levels
    from tracer.exporters.screen.snapshot import print_allocator, print_snapshot, print_steps

    def print_more(index: int) -> None:
        for device in explained.replayed.devices:
            if device.state.device == index:
                print_steps(index, step_levels(device), console, top)
        print_allocator([finding for finding in explained.allocator if finding.device == index], console, top=top)

    first = {allocator.device: allocator.first for allocator in explained.allocator}
    print_snapshot(explained.finding, console, file=str(path), top=top, first=first, more=print_more)


def _checked_settings(settings: Sequence[str]) -> Sequence[str]:
    """The settings asked for, without duplicates; checked before a large file is read."""
    from tracer.allocator.settings import parse_settings

    wanted = dict.fromkeys(settings)
    for text in wanted:
        parse_settings(text)
    return list(wanted)


@contextmanager
def _hint_for_outputs() -> Iterator[None]:
    """The exporters' hint is about the folder of a run; here the files have options of their own."""
    try:
        yield
    except MissingPackageError:
        raise
    except OutputError as error:
        raise OutputError(str(error), hint=_OTHER_FILE) from error


def _write(explained: ExplainedSnapshot, *, html: Path | None, sqlite: Path | None, file: Path) -> None:
    replayed, finding = explained.replayed, explained.finding
    shown = finding.worst
    if shown is None:
        raise SnapshotError(
            f"{file} has no device with memory, so there is nothing to draw.",
            hint="Take the snapshot while the program runs.",
        )
    with FilesInTurn([path for path in (html, sqlite) if path is not None]) as turn:
        if html is not None:
            from tracer.exporters.page.snapshot_page import write_snapshot_page

            first = {tried.device: tried.first for tried in explained.allocator if tried.first is not None}
            run = _described(file, finding)
            with turn.writing(html):
                write_snapshot_page(replayed, finding, html, run=run, first=first)
        if sqlite is not None:
            from tracer.exporters.sqlite_reports import write_snapshot_report

            with turn.writing(sqlite):
                write_snapshot_report(replayed.devices[shown], sqlite)


def _described(file: Path, finding: SnapshotFinding) -> dict[str, str | int | float]:
    devices = ", ".join(str(device.device) for device in finding.devices)
    return {"file": str(file), "devices": devices, "entries": f"{sum(device.entries for device in finding.devices):,}"}
