"""Sentences of a watched run on memory that stays: its growth, what is kept and by whom, and the failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracer.answers.paths import behind, source_place
from tracer.answers.watch_report import HolderName, OutlivedMemory, WatchReport
from tracer.blocks.from_snapshot.sites import NO_FRAMES
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.step_findings import GrowthOverSteps

_MAX_KEPT: Final = 5
_NUM_SAID: Final = 2
"""Lines on growth before a failure: that it grows, and the largest part."""
LET_GO: Final = (
    "Let go of what each step leaves, see above: without it this request would have fit. No setting of the allocator "
    "helps for long."
)


def is_leak(report: WatchReport) -> bool:
    """Whether the request that failed would have been served without what each step leaves in use."""
    event = report.out_of_memory
    kept_bytes = sum(group.bytes for group in report.outlived if group.bytes_per_step > 0)
    return event is not None and kept_bytes >= event.asked_bytes and not event.decisive


def failure_in_words(report: WatchReport) -> FailedAllocation | None:
    """The failure that a watched run ended in, with what grew until then; None if memory did not run out."""
    failed = report.failed
    if failed is None:
        return None
    event = failed.event
    growth: tuple[str, ...] = ()
    if report.steps.growth is not None or any(group.bytes_per_step > 0 for group in report.outlived):
        growth = tuple(line.strip() for line in growth_lines(report)[:_NUM_SAID])
    if is_leak(report):
        return replace(failed, event=replace(event, why=growth, change=LET_GO), first=None)
    why = (*event.why, *growth) if event.decisive else (*growth, *event.why)
    return replace(failed, event=replace(event, why=why))


def growth_lines(report: WatchReport) -> tuple[str, ...]:
    """Return lines on memory that grows from step to step and on its holders; empty without growth."""
    growth = report.steps.growth
    per_step = sum(group.bytes_per_step for group in report.outlived if group.bytes_per_step > 0)
    if growth is not None:
        unit = "In-use memory" if report.allocated_bytes is not None else "Resident memory"
        return (_growth_sentence(growth, unit), *kept_lines(report))
    first = (f"Each step leaves {format_bytes(per_step)} more in use than the one before:",) if per_step else ()
    return (*first, *kept_lines(report))


def _growth_sentence(growth: GrowthOverSteps, unit: str) -> str:
    trend = growth.trend
    sentence = (
        f"{unit} grows by {format_bytes(trend.bytes_per_step)} a step (steps {trend.first_step:,} to "
        f"{trend.last_step:,})"
    )
    if growth.end_step is None or growth.limit_bytes is None:
        return f"{sentence}."
    latest = ", at the latest" if growth.is_at_latest else ""
    return f"{sentence}; at this rate {format_bytes(growth.limit_bytes)} are full in step {growth.end_step:,}{latest}."


def kept_lines(report: WatchReport) -> Iterator[str]:
    """Yield a line for each part of what grows or is kept, the largest first, with who holds it."""
    per_step = sum(group.bytes_per_step for group in report.outlived if group.bytes_per_step > 0)
    growing = [group for group in report.outlived if group.bytes_per_step > 0.01 * per_step]
    for group in growing[:_MAX_KEPT]:
        yield f"  {format_bytes(group.bytes_per_step)} more in each step: {_kept_words(group)}"
    staying = [group for group in report.outlived if group.bytes_per_step <= 0 and group.holders]
    for group in staying[: max(0, _MAX_KEPT - len(growing))]:
        yield f"  Kept: {_kept_words(group)}"


def _kept_words(group: OutlivedMemory) -> str:
    is_known = group.frame and (group.line is not None or group.frame != NO_FRAMES)
    origin = f"made in {group.frame}{behind(group.line)}" if is_known else ""
    holders = " and ".join(holder_words(name) for name in group.holders[:2])
    parts = [f"{format_bytes(group.bytes)} in {some(group.count, 'block')} of kind {group.what}"]
    parts += [origin] if origin else []
    parts += [f"held by {holders}"] if holders else []
    return ", ".join(parts) + "."


def holder_words(name: HolderName) -> str:
    """`trainer.history[...] -> graph of the tensor, train.py:81 (local variable of main(), train.py:12)`."""
    holder = name.holder
    line = f", {source_place(*name.graph_line)}" if name.graph_line is not None else ""
    also = "".join(f" and {path}" for path in holder.also)
    return f"{holder.path}{line}" + (f" ({holder.variable})" if holder.variable else "") + also
