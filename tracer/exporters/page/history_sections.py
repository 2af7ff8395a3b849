"""Sections that the pages of a run and of a snapshot share: failures, changes to try first, host memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.analysis.kinds import BEFORE_RECORDING
from tracer.exporters.host import host_row
from tracer.exporters.page.model import Cell, FileCell, Section, Table
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.analysis.snapshots.causes.pinned_memory import PinnedLine
    from tracer.analysis.snapshots.first_changes import FirstChange, FirstChanges
    from tracer.analysis.snapshots.groups import SnapshotRow
    from tracer.analysis.snapshots.oom import OutOfMemory
    from tracer.analysis.snapshots.sites import Site
    from tracer.capture.device.host_peak import HostPeak

_MAX_TABLES = 5
_TRY_FIRST, _PEAKS = "What to try first", "peaks of a replay as recorded, and with the change"


def oom_section(
    events: Sequence[OutOfMemory], first: FirstChanges | None = None, *, at_peak: Sequence[SnapshotRow] = ()
) -> Section:
    """Return the section of one or more failures: the cause, the first change to try, and the memory in use.

    Args:
        at_peak: What the page shows of the peak; a failure with the same blocks in use has no table of its own.
    """
    failures = Table(
        "Each failure" if len(events) > 1 else "The failure",
        ("entry", "allocation site", "requested", "device free", "in use", "reserved", "unallocated", "largest free"),
        tuple(_oom_row(event) for event in events),
    )
    sentences, in_use = _in_use(events, at_peak)
    if first is not None:
        sentences = (*sentences, *(first.sentences if first.changes else (first.nothing_helps,)))
    tried = () if first is None or not first.changes else (_first_changes_table(f"{_TRY_FIRST}: {_PEAKS}", first),)
    return Section("Out of memory", sentences, (failures, *tried, *in_use), is_alarming=True)


def host_sections(pinned: Sequence[PinnedLine], host: HostPeak | None = None) -> tuple[Section, ...]:
    """Return a section on the peak of the processes and on the lines that pinned memory; none without both."""
    rows = tuple((line.bytes, f"{line.count:,}", site_cell(line.site)) for line in pinned)
    tables = (Table("Pinned at the end", ("size", "blocks", "made by"), rows),) if rows else ()
    sentences = (host_row(host),) if host is not None else ()
    return (Section("Host memory", sentences, tables),) if sentences or tables else ()


def first_changes_sections(first: FirstChanges | None) -> tuple[Section, ...]:
    """Return sections with the first changes to try, for a recording without a failure; none if no change helps."""
    if first is None or not first.changes:
        return ()
    sentences = first.sentences[len(much_saved(first)) :]
    return (Section(_TRY_FIRST, sentences, tables=(_first_changes_table(_PEAKS.capitalize(), first),)),)


def much_saved(first: FirstChanges | None) -> tuple[str, ...]:
    """The decisive cause and its change, where that removes a good part of the peak, for the top of the page."""
    return (first.much_is_saved,) if first is not None and first.much_is_saved else ()


def oom_sentences(events: Sequence[OutOfMemory], device: str) -> tuple[str, ...]:
    """The last failure and its cause, for the top of the page; none where nothing failed."""
    if not events:
        return ()
    last = events[-1]
    times = "" if len(events) == 1 else f", {len(events)} times"
    free = "" if last.device_free_bytes is None else f" with {format_bytes(last.device_free_bytes)} free on the device"
    place = f" by {Path(last.site.file.replace(chr(92), '/')).name}:{last.site.line}" if last.site.file else ""
    sentence = f"Out of memory on {device}{times}: {format_bytes(last.asked_bytes)} were asked for{place}{free}."
    return sentence, last.advice


def _in_use(events: Sequence[OutOfMemory], at_peak: Sequence[SnapshotRow]) -> tuple[tuple[str, ...], list[Table]]:
    """Return the memory in use at each failure: a sentence if that is the peak, which the page shows, else a table."""
    from tracer.analysis.snapshots.oom import distinct_failures

    peak = groups_table("", at_peak).rows
    sentences: list[str] = []
    tables: list[Table] = []
    for event in distinct_failures(events)[:_MAX_TABLES]:
        table = groups_table(f"In use at entry {event.entry:,}", event.groups)
        if table.rows != peak:
            tables.append(table)
        elif not sentences:
            sentences.append(f"Entry {event.entry:,} failed at the peak: “What was in use” shows what filled it.")
    return tuple(sentences), tables


def _oom_row(event: OutOfMemory) -> tuple[Cell, ...]:
    sizes = (event.asked_bytes, event.device_free_bytes, event.allocated_bytes, event.reserved_bytes)
    return (
        f"{event.entry:,}",
        site_cell(event.site),
        *("not recorded" if size is None else size for size in sizes),
        event.unallocated_bytes,
        event.largest_free_bytes,
    )


def _first_changes_table(title: str, first: FirstChanges) -> Table:
    """Peaks of a replay without and with each change, and how many failed requests it serves."""
    columns = ("what to change", "allocated", "allocated with it", "reserved", "reserved with it")
    rows = [(_change_cell(change), *_peaks(change)) for change in first.changes]
    if not first.num_failed:
        return Table(title, columns, tuple(rows))
    served = [f"{change.num_served} of {first.num_failed}" for change in first.changes]
    with_served = tuple((*row, count) for row, count in zip(rows, served, strict=True))
    return Table(title, (*columns, "failed requests that then fit"), with_served)


def _peaks(change: FirstChange) -> tuple[int, int, int, int]:
    return (
        change.allocated_before_bytes,
        change.allocated_bytes,
        change.reserved_before_bytes,
        change.reserved_bytes,
    )


def _change_cell(change: FirstChange) -> FileCell:
    if change.site is None:
        return FileCell(change.words)
    place = site_cell(change.site)
    words = change.words if place.file is not None else f"{change.words} ({place.words})"
    return FileCell(words, place.file, place.line)


def groups_table(title: str, groups: Sequence[SnapshotRow]) -> Table:
    """Size, number, kind and allocation site of each group."""
    rows = tuple((group.bytes, f"{group.count:,}", group.kind_words, site_cell(group.site)) for group in groups)
    return Table(title, ("size", "blocks", "kind", "made by"), rows)


def site_cell(site: Site) -> FileCell:
    """The deciding frame and its line; where it is no line of Python, that is said."""
    from tracer.analysis.snapshots.sites import NO_FRAMES, NO_PYTHON_FRAME

    if site.file is not None:
        return FileCell(site.frame, site.file, site.line)
    is_named = site.frame not in (BEFORE_RECORDING, NO_FRAMES)
    return FileCell(f"{site.frame} ({NO_PYTHON_FRAME})" if is_named else site.frame)


def reserved_table(moments: Sequence[tuple[str, int, int, int, int]]) -> Table:
    """Reserved, allocated, free and largest free bytes at some moments."""
    columns = ("", "reserved", "allocated", "reserved but unallocated", "largest free block")
    return Table("How much of it was free, and in how large a piece", columns, tuple(moments))
