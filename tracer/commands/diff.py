"""`torch-timeline diff`: what changed between two peaks, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.answers.files import PAGE, PEAK
from tracer.commands import options as opt
from tracer.commands.common import (
    SNAPSHOT_NAME,
    THRESHOLD_EXCEEDED,
    check_output,
    errors_for_people,
    say_all,
    snapshot_path,
)
from tracer.commands.options import option
from tracer.errors import RecordingError, SnapshotError
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.next_commands import after_diff
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from tracer.answers.aligned_curves import AlignedCurves, MemoryCurve
    from tracer.answers.difference import PeakDiff

PEAK_NAME = PEAK.file_name
_HINT = "Name two snapshots, or two folders that a run wrote (of one rank each)."


def diff(
    before: Annotated[Path, typer.Argument(help="A snapshot, or a --save-dir.")],
    after: Annotated[Path, typer.Argument(help="The one to compare with it.")],
    fail_above: Annotated[str | None, option("Growth that fails: 5%, or 100MiB.", metavar="<limit>")] = None,
    html: opt.Html = None,
    as_json: opt.AsJson = False,
    full: opt.Full = False,
) -> None:
    """Say what changed between two peaks, to the byte.

    Two folders of runs are compared by category, module, operator and line, two
    snapshots by kind and stack.

    torch-timeline diff before after --fail-above 5%
    """
    from tracer.answers.threshold import parse_threshold

    exceeded: list[str] = []
    with errors_for_people():
        threshold = parse_threshold(fail_above) if fail_above is not None else None
        names = {"before": str(before), "after": str(after)}
        if html is not None:
            check_output(html, [before, after])
        first, second = (side.parent if side.name == PEAK_NAME and side.is_file() else side for side in (before, after))
        diffs = compare(first, second)
        last = () if as_json else after_diff(before, after, has_page=html is not None)
        from tracer.exporters.diff import answer_of_diffs
        from tracer.exporters.json_documents.peak import peak_diffs_json
        from tracer.exporters.screen.answer import print_answer

        Console.of(as_json=as_json).answer(
            lambda: peak_diffs_json(diffs, **names),
            lambda rich: print_answer(answer_of_diffs(diffs, **names), rich, full=full, last=last, top=10),
        )
        if html is not None:
            from tracer.exporters.page.diff_page import write_diff_page

            curves, notes = _curves(first, second, diffs)
            write_diff_page(diffs, html, **names, curves=curves, notes=notes)
            say_all([f"Wrote {html}  (open with a browser)"])
        say_all(last)
        if threshold is not None:
            exceeded = [threshold.sentence(one.after.device, one) for one in diffs if threshold.is_exceeded_by(one)]
        say_all(exceeded)
    if exceeded:
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _what_to_compare(before: Path, after: Path) -> str:
    """Return the name of the file to compare: peak.json if both sides have one, else the snapshot."""
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
    """Return the words on what a directory without a snapshot has instead, and why that does not help."""
    other = after if folder == before else before
    if (folder / PEAK_NAME).is_file():
        lacks = "has none" if other.is_dir() else "is not a --save-dir"
        return f", and its {PEAK_NAME} cannot be compared because {other} {lacks}"
    if any(folder.glob(f"rank*/{PEAK_NAME}")):
        return f" and no {PEAK_NAME}, but a folder for each rank"
    return f" and no {PEAK_NAME}"


def compare(before: Path, after: Path) -> tuple[PeakDiff, ...]:
    """Compare two profiled runs, or two snapshots, device by device."""
    if _what_to_compare(before, after) == PEAK_NAME:
        from tracer.answers.difference import diff_peaks
        from tracer.exporters.json_documents.peak import read_peak_json

        return (diff_peaks(read_peak_json(before / PEAK_NAME), read_peak_json(after / PEAK_NAME)),)
    sides = [load_snapshot(snapshot_path(path)) for path in (before, after)]
    from tracer.answers.difference import diff_snapshots

    return diff_snapshots(*sides)


def _curves(before: Path, after: Path, diffs: Sequence[PeakDiff]) -> tuple[dict[str, AlignedCurves], tuple[str, ...]]:
    """Return both curves on one axis by device, and a note for each device without them."""
    from tracer.answers.aligned_curves import align

    found, notes = {}, []
    for diff in diffs:
        try:
            sides = [_curve(side, peak.device) for side, peak in ((before, diff.before), (after, diff.after))]
        except RecordingError as error:
            notes.append(f"The curves are not drawn: {error}")
            continue
        if missing := [side for side, curve in zip((before, after), sides, strict=True) if curve is None]:
            notes.append(f"The curves are not drawn: {missing[0]} has no recording of memory over time.")
        else:
            found[diff.after.device] = align(*filter(None, sides))
    return found, tuple(dict.fromkeys(notes))


def _curve(side: Path, device: str) -> MemoryCurve | None:
    """Return memory over time of a device, from a run's page or a snapshot; None if neither is there."""
    if side.is_dir() and (side / PAGE.file_name).is_file() and not device.startswith("device "):
        from tracer.exporters.page.diff_page import curve_of_page

        return curve_of_page(side / PAGE.file_name, device)
    if side.is_dir() and not (side / SNAPSHOT_NAME).is_file():
        return None
    from tracer.answers.aligned_curves import curve_of_device
    from tracer.answers.snapshot_findings import replay_snapshot

    replayed = replay_snapshot(load_snapshot(snapshot_path(side)))
    named = [
        one for one in replayed.devices if device in (f"device {one.state.device}", "cpu") and len(one.state.trace)
    ]
    return curve_of_device(named[0]) if named else None
