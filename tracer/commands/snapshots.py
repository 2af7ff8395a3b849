"""The commands `snapshot` and `diff` from a path to the screen, so that the command line only parses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.errors import MissingPackageError, OutputError, SettingsError, SnapshotError
from tracer.runs.termination import FilesInTurn
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.analysis.snapshots.diff import DeviceDiff, Grown
    from tracer.analysis.snapshots.findings import ReplayedSnapshot, SnapshotFinding

SNAPSHOT_NAME = "memory_snapshot.pkl"
PEAK_NAME = "peak.json"
_HINT = "Name two snapshots, or two folders that a run wrote (of one rank each)."


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


def show_diff(
    before: Path, after: Path, console: Console, *, top: int = 10, fail_above: str | None = None
) -> Sequence[Grown]:
    """Compare two peaks on a console.

    Two save directories with a peak.json each are compared by category, module, operator and line; else their
    snapshots, or the two snapshots named, by kind and stack.

    Args:
        before: A snapshot or a save directory.
        after: Another one.
        console: Where to print.
        top: Rows of each table but the first.
        fail_above: A threshold such as `5%` or `100MiB`; checked before anything is read.

    Returns:
        The devices whose peak grew by more than the threshold; none without one.

    Raises:
        SnapshotError: One of them cannot be read.
        TracerError: The threshold is none.
    """
    from tracer.analysis.snapshots.diff import parse_threshold

    threshold = parse_threshold(fail_above) if fail_above is not None else None
    names = {"before": str(before), "after": str(after)}
    diffs: Sequence[Grown]
    if _what_to_compare(before, after) == PEAK_NAME:
        from tracer.analysis.peak_diff import diff_peaks
        from tracer.exporters.peak_diff_screen import print_peak_diff
        from tracer.exporters.peak_json import read_peak_json

        peaks = diff_peaks(read_peak_json(before / PEAK_NAME), read_peak_json(after / PEAK_NAME))
        print_peak_diff(peaks, console, **names, top=top)
        diffs = [peaks]
    else:
        from tracer.exporters.snapshot_screen import print_diff

        devices = compare_files(before, after)
        print_diff(devices, console, **names, top=top)
        diffs = devices
    return [diff for diff in diffs if threshold is not None and threshold.is_exceeded_by(diff)]


def _what_to_compare(before: Path, after: Path) -> str:
    """The name of the file that both sides have, the better one first.

    Raises:
        SnapshotError: Two directories have no file in common.
    """
    folders = [side for side in (before, after) if side.is_dir()]
    if not folders:
        return SNAPSHOT_NAME
    have = {name: [side for side in folders if (side / name).is_file()] for name in (PEAK_NAME, SNAPSHOT_NAME)}
    if len(have[PEAK_NAME]) == 2:
        return PEAK_NAME
    without = [side for side in folders if side not in have[SNAPSHOT_NAME]]
    if without:
        raise SnapshotError(f"{without[0]} has no {SNAPSHOT_NAME}{_instead(without[0], before, after)}.", hint=_HINT)
    return SNAPSHOT_NAME


def _instead(folder: Path, before: Path, after: Path) -> str:
    """What a directory without a snapshot has instead, and why that does not help."""
    other = after if folder == before else before
    if (folder / PEAK_NAME).is_file():
        lacks = "has none" if other.is_dir() else "is not a --save-dir"
        return f", and its {PEAK_NAME} cannot be compared because {other} {lacks}"
    if any(folder.glob(f"rank*/{PEAK_NAME}")):
        return f" and no {PEAK_NAME}, but a folder for each rank"
    return f" and no {PEAK_NAME}"


def compare_files(before: Path, after: Path) -> tuple[DeviceDiff, ...]:
    """Load two snapshots, or those of two save directories, and compare their peaks.

    Raises:
        SnapshotError: One of them cannot be read.
    """
    sides = [load_snapshot(snapshot_path(path)) for path in (before, after)]
    from tracer.analysis.snapshots.diff import diff_snapshots

    return diff_snapshots(*sides)


def snapshot_path(path: Path) -> Path:
    """The snapshot itself, or the one in a save directory."""
    return path / SNAPSHOT_NAME if path.is_dir() else path
