"""The page of an allocator snapshot, like a profiled run's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tracer.allocator.fragmentation import address_ranges
from tracer.answers.answer import Answer
from tracer.answers.answer_of_snapshot import answer_of_device, answers_of_devices
from tracer.answers.findings import ReplayedFindings, SnapshotFindings
from tracer.answers.history_sections import device_sections, host_sections
from tracer.answers.rows import BY_LINE, group_rows
from tracer.blocks.from_snapshot.timeline import DeviceTimeline, device_timeline
from tracer.exporters.page.blocks import page_space
from tracer.exporters.page.html import write_pages
from tracer.exporters.page.model import (
    Curve,
    Mark,
    Page,
)
from tracer.units import format_bytes, some

_MAX_OOM_MARKS = 4


def write_snapshot_page(
    findings: SnapshotFindings,
    path: Path,
    *,
    run: Mapping[str, str | int | float],
    worst: Answer | None = None,
) -> None:
    """Write the page of a snapshot's devices, with the worst one in front.

    Args:
        worst: The answer of the worst device; by default what the snapshot alone says.
    """
    answers = list(answers_of_devices(findings))
    shown = findings.parts.index(findings.worst)
    if worst is not None:
        answers[shown] = replace(worst, sections=(*worst.sections, *device_sections(findings.worst)))
    pages = [snapshot_page(*each, run=run) for each in zip(findings.parts, answers, strict=True)]
    if worst is None:
        pages = [replace(page, sections=host_sections(findings.pinned_bytes)) for page in pages]
    write_pages(pages, path, shown=shown)


def snapshot_page(
    device: ReplayedFindings, answer: Answer | None = None, *, run: Mapping[str, str | int | float]
) -> Page:
    """The page of one device."""
    answer = answer or answer_of_device(device)
    replayed, timeline, peak = device.source, device_timeline(device.source), device.peak
    words = {"step": "annotated regions"}
    left_out = (
        f"The stretches of {words.get(phase, phase)} are too many to be drawn below the timeline."
        for phase in timeline.left_out
    )
    has_history = replayed.num_events > 0  # else the state is the only moment, and there is no timeline
    has_allocator = has_history and replayed.snapshot.has_allocator
    lines = (
        Curve("allocated", timeline.times, timeline.allocated_bytes),
        Curve("reserved", timeline.times, timeline.reserved_bytes),
    )
    groups, group = group_rows(replayed.blocks, merged=BY_LINE)
    return Page(
        title="Memory of an allocator snapshot",
        device=peak.device,
        answer=replace(answer, remarks=(*answer.remarks, *left_out)),
        source="snapshot",
        subtitle=some(replayed.num_events, "entry") if has_history else "no history, only the state",
        axis=timeline.axis,
        origin=0,
        times=timeline.times,
        series={kind.name: level for kind, level in timeline.levels.items()} if has_history else {},
        lines=lines if has_allocator else (),
        counted_bytes=replayed.replay.requested_bytes,
        blocks=replayed.blocks,
        groups=groups,
        group=group,
        first_row=1,  # the state after the first entry
        has_addresses=True,
        space=page_space(address_ranges(replayed.state), replayed.snapshot.text) if has_allocator else None,
        marks=_marks(device, timeline) if has_history else (),
        bands=timeline.stretches,
        breakdown=peak.by_category(),
        peak_row=peak.position + 1,
        run=run,
    )


def _marks(device: ReplayedFindings, timeline: DeviceTimeline) -> tuple[Mark, ...]:
    def mark(entry: int) -> int:
        return int(timeline.times[entry + 1])

    peak = Mark("peak", "peak", mark(device.peak.position), device.peak.peak_bytes)
    ooms = (
        Mark("oom", f"out of memory, asked for {format_bytes(event.asked_bytes)} at", mark(event.entry),
             event.requested_bytes)
        for event in device.failures[:_MAX_OOM_MARKS]
    )  # fmt: skip
    return (peak, *ooms)
