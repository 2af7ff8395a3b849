"""`torch-timeline snapshot`: what filled each device, from an allocator snapshot made anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.answers.files import MEMORY_REPORT, PAGE
from tracer.commands import options as opt
from tracer.commands.common import (
    THRESHOLD_EXCEEDED,
    check_outputs,
    errors_for_people,
    page_to_open,
    say_all,
    show_page,
    snapshot_path,
)
from tracer.commands.options import checked_size, number, option
from tracer.errors import MissingPackageError, OutputError, SnapshotError, TracerError
from tracer.exporters.screen.next_commands import after_job, after_snapshot
from tracer.exporters.screen.terminal import print_json, screen
from tracer.sessions.termination import FilesInTurn
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from tracer.answers.allocator.allocator_finding import AllocatorFinding
    from tracer.answers.snapshot_findings import SnapshotFinding


_OTHER_FILE = "Name another file with --html or --sqlite."
ALLOCATOR = "Other allocator settings, another GPU"


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
    html: opt.Html = None,
    open_: opt.Open = False,
    sqlite: Annotated[
        Path | None, option("Also write the memory report of that device.", opt.OUTPUTS, metavar="<path>")
    ] = None,
    as_json: opt.AsJson = False,
    full: opt.Full = False,
) -> None:
    """Explain an allocator snapshot made anywhere.

    It says what filled each device at its peak, and why it ran out. Several recordings
    are the ranks of a job: it says which are alike, and which are odd.
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
            _answer_job(file, device=device, dask=dask, as_json=as_json, full=full)
            return
        html = page_to_open(html, is_opened=open_)
        (path,) = file
        outputs = [out for out in (html, sqlite) if out is not None]
        with _hint_for_outputs():
            check_outputs(outputs, [snapshot_path(path)], hint=_OTHER_FILE)
        finding, allocator = _explained(path, device, settings or (), gpu_memory)
        if outputs:
            with _hint_for_outputs():
                _write(finding, allocator, html=html, sqlite=sqlite, file=path)
        from tracer.answers.answer_of_snapshot import answer_of_snapshot
        from tracer.exporters.json_documents.snapshot import snapshot_json
        from tracer.exporters.screen.answer import print_answer

        devices = sorted(finding.devices, key=lambda device: not device.oom)
        last = after_snapshot(
            path,
            [device.device for device in devices],
            has_failed=any(device.oom for device in devices),
            has_page=html is not None,
            has_settings=all(one.modelled is None or one.what_if is not None for one in allocator),
        )
        last = () if as_json else last
        with screen() as console:
            if as_json:
                print_json(snapshot_json(finding, allocator, file=str(path)), console)
            else:
                print_answer(
                    answer_of_snapshot(finding, allocator, file=str(path)), console, full=full, last=last, top=10
                )
            readers = {html: PAGE.read_with, sqlite: MEMORY_REPORT.read_with}
            say_all(f"Wrote {path}  (open with {reader})" for path, reader in readers.items() if path is not None)
        if html is not None and open_:
            show_page(html)
        say_all(last)
    # Each device of the recording has to run on the GPU of --gpu-memory.
    if not all(one.what_if is None or one.what_if.runs for one in allocator):
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _answer_job(paths: Sequence[Path], *, device: int | None, dask: str | None, as_json: bool, full: bool) -> None:
    """Explain the recordings of a job."""
    from tracer.answers.answer_of_job import answer_of_job
    from tracer.answers.ranks import explain_job
    from tracer.exporters.json_documents.job import job_json
    from tracer.exporters.screen.answer import print_answer
    from tracer.sessions.jobs.read_recordings import read_job, recordings

    files = recordings(paths)
    finding = explain_job(read_job(files, device=device, dask=dask))
    if finding.worst is None or finding.typical is None:
        first = finding.unreadable[0]
        which = "The recording cannot" if len(files) == 1 else f"None of {len(files):,} recordings can"
        raise SnapshotError(f"{which} be read. {first.file}: {first.problem}")
    last = () if as_json else after_job(finding.worst.file, finding.typical.file, paths)
    with screen() as console:
        if as_json:
            print_json(job_json(finding), console)
        else:
            print_answer(answer_of_job(finding), console, full=full, last=last, top=10)
    say_all(last)


def is_job(paths: Sequence[Path]) -> bool:
    """True for the recordings of several ranks: several paths, a pattern, or a folder of recordings."""
    if len(paths) != 1:
        return True
    (path,) = paths
    return (
        not snapshot_path(path).exists()
        if path.is_dir()
        else not path.exists() and set(path.name) & set("*?[") != set()
    )


def _explained(
    path: Path, device: int | None, settings: Sequence[str], gpu_memory: str | None
) -> tuple[SnapshotFinding, Sequence[AllocatorFinding]]:
    """Return what was found in a snapshot, and what the allocator's model says of each device."""
    from tracer.allocator.settings import parse_settings

    memory = checked_size(gpu_memory)
    for text in settings:  # before a large file is read
        parse_settings(text)
    snapshot = load_snapshot(snapshot_path(path))
    from tracer.answers.allocator.allocator_finding import explain_allocator, with_model
    from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot

    replayed = replay_snapshot(snapshot, device=device)
    allocator = explain_allocator(replayed, settings=list(dict.fromkeys(settings)), gpu_memory=memory)
    return with_model(explain_replayed(replayed), allocator), allocator


@contextmanager
def _hint_for_outputs() -> Iterator[None]:
    """Replace the exporters' hint, which is about the folder of a run: here each file has an option of its own."""
    try:
        yield
    except MissingPackageError:
        raise
    except OutputError as error:
        raise OutputError(str(error), hint=_OTHER_FILE) from error


def _write(
    finding: SnapshotFinding,
    allocator: Sequence[AllocatorFinding],
    *,
    html: Path | None,
    sqlite: Path | None,
    file: Path,
) -> None:
    """Write a page of all devices, and a database of the one that is named, or else the worst."""
    if (shown := finding.worst) is None:
        raise SnapshotError(
            f"{file} has no device with memory, so there is nothing to draw.",
            hint="Take the snapshot while the program runs.",
        )
    with FilesInTurn([path for path in (html, sqlite) if path is not None]) as turn:
        if html is not None:
            from tracer.exporters.page.snapshot_page import write_snapshot_page

            devices = ", ".join(str(device.device) for device in finding.devices)
            run = {"file": str(file), "devices": devices, "entries": f"{sum(one.entries for one in finding.devices):,}"}
            with turn.writing(html):
                write_snapshot_page(finding, html, allocator, run=run)
        if sqlite is not None:
            from tracer.exporters.sqlite_reports import write_snapshot_report

            with turn.writing(sqlite):
                write_snapshot_report(finding.devices[shown].replayed, sqlite)
