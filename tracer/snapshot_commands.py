"""The commands `snapshot` and `diff` from a path to the screen, so that the command line only parses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from tracer.analysis.snapshot_diff import DeviceDiff
    from tracer.analysis.snapshot_explain import SnapshotFinding

SNAPSHOT_NAME = "memory_snapshot.pkl"


def explain_file(path: Path, *, device: int | None = None) -> SnapshotFinding:
    """Load and explain a snapshot.

    Args:
        path: A snapshot, or a directory that holds a `memory_snapshot.pkl`.
        device: The only device to look at; None means all.

    Raises:
        SnapshotError: The file cannot be read, or has nothing of that device.
    """
    snapshot = load_snapshot(snapshot_path(path))
    from tracer.analysis.snapshot_explain import explain_snapshot

    return explain_snapshot(snapshot, device=device)


def show_snapshot(
    path: Path, console: Console, *, device: int | None = None, top: int = 10, as_json: bool = False
) -> None:
    """Explain a snapshot on a console, as text or as JSON.

    Raises:
        SnapshotError: The file cannot be read, or has nothing of that device.
    """
    finding = explain_file(path, device=device)
    if as_json:
        from tracer.exporters.snapshot_json import snapshot_json

        console.file.write(snapshot_json(finding, file=str(path)) + "\n")
        return
    from tracer.exporters.snapshot_screen import print_snapshot

    print_snapshot(finding, console, file=str(path), top=top)


def compare_files(before: Path, after: Path) -> tuple[DeviceDiff, ...]:
    """Load two snapshots, or those of two save directories, and compare their peaks.

    Raises:
        SnapshotError: One of them cannot be read.
    """
    sides = [load_snapshot(snapshot_path(path)) for path in (before, after)]
    from tracer.analysis.snapshot_diff import diff_snapshots

    return diff_snapshots(*sides)


def show_diff(
    before: Path, after: Path, console: Console, *, top: int = 10, fail_above: str | None = None
) -> Sequence[DeviceDiff]:
    """Compare two snapshots on a console.

    Args:
        before: A snapshot or a save directory.
        after: Another one.
        console: Where to print.
        top: Rows of the table by stack.
        fail_above: A threshold such as `5%` or `100MiB`; checked before anything is read.

    Returns:
        The devices whose peak grew by more than the threshold; none without one.

    Raises:
        SnapshotError: One of them cannot be read.
        TracerError: The threshold is none.
    """
    from tracer.analysis.snapshot_diff import parse_threshold
    from tracer.exporters.snapshot_screen import print_diff

    threshold = parse_threshold(fail_above) if fail_above is not None else None
    diffs = compare_files(before, after)
    print_diff(diffs, console, before=str(before), after=str(after), top=top)
    return [diff for diff in diffs if threshold is not None and threshold.is_exceeded_by(diff)]


def snapshot_path(path: Path) -> Path:
    """The snapshot itself, or the one in a save directory."""
    return path / SNAPSHOT_NAME if path.is_dir() else path
