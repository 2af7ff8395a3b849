"""The page of an allocator snapshot, like a profiled run's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tracer.allocator.fragmentation import address_ranges
from tracer.answers.answer import cause_and_change, failure_words
from tracer.answers.answer_of_snapshot import happened_on
from tracer.answers.history_sections import (
    device_sections,
    failure_sections,
    first_changes_sections,
    host_sections,
)
from tracer.answers.paths import shorten_paths
from tracer.answers.peak import Peak
from tracer.answers.rows import BY_LINE, group_rows
from tracer.answers.snapshot_findings import DeviceFinding, ReplayedSnapshot, SnapshotFinding
from tracer.answers.tables import Section, Table, columns
from tracer.answers.why.first_changes import FirstChanges
from tracer.blocks.from_snapshot.timeline import START, DeviceTimeline, device_timeline
from tracer.exporters.page.blocks import page_space
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import (
    Curve,
    Mark,
    Page,
    PageBlocks,
    PagePeak,
    Series,
)
from tracer.units import format_bytes, some

_MAX_OOM_MARKS = 4


def write_snapshot_page(
    replayed: ReplayedSnapshot,
    finding: SnapshotFinding,
    path: Path,
    *,
    run: Mapping[str, str | int | float],
    caveat: str = "",
    first: Mapping[int, FirstChanges] | None = None,
) -> None:
    """Write the page of a snapshot's devices, with the worst one in front."""
    pages = []
    for shown, device in enumerate(replayed.devices):
        tried = (first or {}).get(device.state.device)
        page = snapshot_page(replayed, finding, shown, device_timeline(device), run=run, first=tried)
        pages.append(replace(page, caveat=caveat))
    write_pages(pages, path, shown=finding.worst or 0)


def snapshot_page(
    replayed: ReplayedSnapshot,
    finding: SnapshotFinding,
    shown: int,
    timeline: DeviceTimeline,
    *,
    run: Mapping[str, str | int | float],
    first: FirstChanges | None = None,
) -> Page:
    """The content for one device."""
    device, replayed_device = finding.devices[shown], replayed.devices[shown]
    words = {"step": "annotated regions"}
    left_out = (
        f"The stretches of {words.get(phase, phase)} are too many to be drawn below the timeline."
        for phase in timeline.left_out
    )
    has_history = bool(device.entries)  # else the state is the only moment, and there is no timeline
    has_allocator = has_history and replayed.snapshot.has_allocator
    lines = (
        Curve("allocated", timeline.times, timeline.allocated_bytes),
        Curve("reserved", timeline.times, timeline.reserved_bytes),
    )
    return Page(
        title="Memory of an allocator snapshot",
        device=f"device {device.device}",
        source="snapshot",
        subtitle=some(device.entries, "entry") if has_history else "no history, only the state",
        axis=timeline.axis,
        origin=0,
        times=timeline.times,
        series=tuple(Series(kind.name, level) for kind, level in timeline.levels.items()) if has_history else (),
        lines=lines if has_allocator else (),
        counted_bytes=replayed_device.replay.requested_bytes,
        blocks=_blocks(replayed, device, shown),
        space=page_space(address_ranges(replayed_device.state), replayed.snapshot.text, first_row=1)
        if has_allocator
        else None,
        marks=_marks(device, timeline) if has_history else (),
        bands=timeline.stretches,
        peak=_peak(device),
        run=run,
        alarm=_alarm(device, first),
        notes=(*finding.notes, *device.notes, *left_out),
        sections=_sections(finding, shown, first),
        headline_notes=(
            *(sentence for part in cause_and_change(first if not device.oom else None) for sentence in part),
            *_rounded(device.peak),
        ),
    )


def _alarm(device: DeviceFinding, first: FirstChanges | None) -> tuple[str, ...]:
    if not device.oom:
        return ()
    why, change = failure_words(device.oom[-1], first)
    return (shorten_paths(happened_on(device)), *why, *change)


def _rounded(peak: Peak) -> tuple[str, ...]:
    """How the peak, which is counted as the program asked for it, is called by torch's own statistics."""
    memory = peak.fragmentation
    if not peak.peak_bytes or memory is None:
        return ()
    allocated, reserved = format_bytes(memory.allocated_bytes), format_bytes(memory.reserved_bytes)
    return (
        f"The peak counts requested bytes. torch reports {allocated} allocated (rounded up) and {reserved} reserved.",
    )


def _blocks(replayed: ReplayedSnapshot, device: DeviceFinding, shown: int) -> PageBlocks:
    """Every block of one device; row i + 1 of the timeline is the state after entry i."""
    replayed_device = replayed.devices[shown]
    lives = replayed_device.replay.lives
    groups, group = group_rows(replayed_device.blocks, merged=BY_LINE)
    return PageBlocks(
        groups=groups,
        group=group,
        size_bytes=lives.requested_bytes,
        made_at=lives.begin + 1,
        freed_at=lives.end + 1,
        stacks=tuple(one.stack or () for one in groups),
        address=lives.addr,
        allocated_bytes=lives.allocated_bytes,
    )


def _marks(device: DeviceFinding, timeline: DeviceTimeline) -> tuple[Mark, ...]:
    def mark(entry: int) -> int:
        return int(timeline.times[entry + 1])

    peak = Mark("peak", "peak", mark(device.peak.position), device.peak.peak_bytes)
    ooms = (
        Mark("oom", f"out of memory, asked for {format_bytes(event.asked_bytes)} at", mark(event.entry),
             event.requested_bytes)
        for event in device.oom[:_MAX_OOM_MARKS]
    )  # fmt: skip
    return (peak, *ooms)


def _peak(device: DeviceFinding) -> PagePeak:
    peak = device.peak
    phase: str | None = peak.phase or None
    if peak.position == START:
        phase = "the start of the recording" if device.entries else "the moment of the snapshot"
    return PagePeak(
        bytes=peak.peak_bytes,
        phase=phase,
        breakdown=peak.by_category(),
        rows=peak.rows,
        row=peak.position + 1,
    )


def _sections(finding: SnapshotFinding, shown: int, first: FirstChanges | None) -> tuple[Section, ...]:
    device = finding.devices[shown]
    others = [device for index, device in enumerate(finding.devices) if index != shown]
    heads = (*columns("text", "device"), *columns("bytes", "peak"), *columns("count", "times out of memory"))
    rows = tuple((f"device {one.device}", one.peak.peak_bytes, len(one.oom)) for one in others)
    words = f"What is shown is device {device.device}; another one is chosen at the top of the page."
    beside = Section("Other devices", (words,), (Table("Their peaks", heads, rows),))
    return (
        *failure_sections(device.oom, first_time_us=device.first_time_us, at_peak=device.peak.rows, is_advised=True),
        *first_changes_sections(first),
        *device_sections(device),
        *host_sections(finding.pinned_bytes),
        *([beside] if others else []),
    )
