"""`torch-timeline snapshot`: what filled each device, from an allocator snapshot made anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.common import errors_for_people, snapshot_path
from tracer.errors import MissingPackageError, OutputError, SettingsError, SnapshotError
from tracer.exporters.terminal import say, screen
from tracer.runs.termination import FilesInTurn
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding


def snapshot(
    file: Annotated[Path, typer.Argument(help="A pickle or JSON of torch.cuda.memory._snapshot(), or a --save-dir.")],
    device: Annotated[int | None, typer.Option(min=0, help="Index of the only device to look at.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of each table.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the page, of --device or of the worst one.")] = None,
    sqlite: Annotated[Path | None, typer.Option(help="Also write the memory report of that device.")] = None,
    settings: Annotated[
        list[str], typer.Option(help="Replay it under other allocator settings: expandable_segments:True. Repeatable.")
    ] = [],  # noqa: B006
    search_settings: Annotated[
        bool, typer.Option("--search-settings", help="Replay it under the settings that are worth trying.")
    ] = False,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Replay it on a GPU of 16GiB, say; exit with 3 if it does not run there.")
    ] = None,
) -> None:
    """Say what filled each device at its peak, from an allocator snapshot made anywhere, and why it ran out."""
    with errors_for_people(), screen() as console:
        shown = show_snapshot(
            file,
            console,
            device=device,
            top=top,
            as_json=as_json,
            html=html,
            sqlite=sqlite,
            settings=settings,
            search_settings=search_settings,
            gpu_memory=gpu_memory,
        )
        for path in shown.files:
            say(f"Wrote {path}  (open with {'a browser' if path == html else 'sqlite3, or a reader of Skyline'})")
    if not shown.runs:
        raise typer.Exit(3)


@dataclass(frozen=True, slots=True)
class Shown:
    """What became of `show_snapshot`.

    Attributes:
        files: The files written.
        runs: Whether the recording runs on the GPU asked about, on every device of it; True if none was.
    """

    files: Sequence[Path]
    runs: bool


def show_snapshot(
    path: Path,
    console: Console,
    *,
    device: int | None = None,
    top: int = 10,
    as_json: bool = False,
    html: Path | None = None,
    sqlite: Path | None = None,
    settings: Sequence[str] = (),
    search_settings: bool = False,
    gpu_memory: str | None = None,
) -> Shown:
    """Explain a snapshot on a console, as text or as JSON, and in files.

    A page and a database are about one device: the one named, or else the worst, see `SnapshotFinding.worst`.

    Args:
        path: A snapshot, or a directory that holds a `memory_snapshot.pkl`.
        console: Where to print.
        device: The only device to look at; None means all.
        top: Rows of each table on the console.
        as_json: Print JSON instead of text.
        html: Where to write the page.
        sqlite: Where to write the memory report.
        settings: Settings of the allocator to replay the recording under.
        search_settings: Also replay it under those that are worth trying.
        gpu_memory: A GPU to replay it on, such as `16GiB`.

    Raises:
        SnapshotError: The file cannot be read, or has nothing of that device.
        SettingsError: torch would not start with some of the settings, or the GPU's memory is no size.
        OutputError: A file cannot be written, or the page lacks plotly.
        WritingInterrupted: Ctrl-C has come while the files were written.
    """
    memory = _checked_size(gpu_memory)
    wanted = _checked_settings(settings, search=search_settings)
    outputs = [out for out in (html, sqlite) if out is not None]
    with _hint_for_outputs():
        _check_outputs(snapshot_path(path), outputs)
    if html is not None:
        from tracer.exporters.page import check_plotly

        check_plotly()
    snapshot = load_snapshot(snapshot_path(path))
    from tracer.analysis.snapshots.allocator_finding import explain_allocator
    from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot

    replayed = replay_snapshot(snapshot, device=device)
    finding = explain_replayed(replayed)
    allocator = explain_allocator(replayed, settings=wanted, gpu_memory=memory)
    if outputs:
        with _hint_for_outputs():
            _write(replayed, finding, html=html, sqlite=sqlite, file=path)
    if as_json:
        from tracer.exporters.snapshot_json import snapshot_json

        console.file.write(snapshot_json(finding, file=str(path), allocator=allocator) + "\n")
    else:
        from tracer.exporters.allocator_screen import print_allocator
        from tracer.exporters.snapshot_screen import print_snapshot

        print_snapshot(finding, console, file=str(path), top=top)
        print_allocator(allocator, console, top=top)
    return Shown(outputs, all(found.what_if is None or found.what_if.runs for found in allocator))


def _checked_size(text: str | None) -> int | None:
    from tracer.units import parse_size

    try:
        return parse_size(text) if text is not None else None
    except ValueError as error:
        raise SettingsError(str(error), hint="Write the GPU's memory as 16GiB, 80GiB or 8192MiB.") from None


def _checked_settings(settings: Sequence[str], *, search: bool) -> Sequence[str]:
    """Those asked for and those to search, each once; checked before a large file is read."""
    from tracer.allocator.settings import parse_settings
    from tracer.analysis.snapshots.what_if import WORTH_TRYING

    wanted = dict.fromkeys([*settings, *(WORTH_TRYING if search else ())])
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
        raise OutputError(str(error), hint="Name another file with --html or --sqlite.") from error


def _check_outputs(path: Path, outputs: Sequence[Path]) -> None:
    """Before anything is read: that the files can be written, and are neither the snapshot nor each other.

    Raises:
        OutputError: One of them cannot be written.
    """
    from tracer.exporters.files import check_folder

    taken = [path.resolve()]
    for out in outputs:
        if out.is_dir():
            raise OutputError(f"{out} is a folder.")
        if out.resolve() in taken:
            raise OutputError(f"{out} is named twice.")
        taken.append(out.resolve())
        check_folder(out.parent)


def _write(
    replayed: ReplayedSnapshot, finding: SnapshotFinding, *, html: Path | None, sqlite: Path | None, file: Path
) -> None:
    shown = finding.worst
    if shown is None:
        raise SnapshotError(
            f"{file} has no device with memory, so there is nothing to draw.",
            hint="Take the snapshot while the program runs.",
        )
    from tracer.analysis.snapshots.timeline import device_timeline

    one = replayed.devices[shown]
    timeline = device_timeline(replayed.snapshot, one.state, one.replay, kinds=one.kinds)
    with FilesInTurn([path for path in (html, sqlite) if path is not None]) as turn:
        if html is not None:
            from tracer.exporters.snapshot_page import write_snapshot_page

            with turn.writing(html):
                write_snapshot_page(finding, shown, timeline, html, run=_described(file, finding))
        if sqlite is not None:
            from tracer.analysis.snapshots.memory_report import snapshot_report
            from tracer.exporters.snapshot_report import write_snapshot_report

            with turn.writing(sqlite):
                report = snapshot_report(replayed, finding, shown, timeline, settings=_described(file, finding))
                write_snapshot_report(report, sqlite)


def _described(file: Path, finding: SnapshotFinding) -> dict[str, str | int | float]:
    """What a reader wants to know of the recording."""
    devices = ", ".join(str(one.device) for one in finding.devices)
    return {"file": str(file), "devices": devices, "entries": f"{sum(one.entries for one in finding.devices):,}"}
