"""The answer on a device of a run: the peak, its tables, and what a reader of the peak has to know beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracer.answers.answer import Answer
from tracer.answers.answer_tables import (
    categories_table,
    in_use_tables,
    parts_tables,
    phases_tables,
)
from tracer.answers.caveats import (
    asleep_sentences,
    compiled_sentences,
    counted,
    graph_sentences,
    growth_sentences,
    left_out,
    not_recorded,
    unseen,
)
from tracer.answers.rows import moment_words
from tracer.answers.tables import Section
from tracer.blocks.kinds import words_of
from tracer.capture.torch_names import step_words
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.findings import RunFindings
    from tracer.answers.peak import AllocatorPeak, Peak


_MORE_POOLS: Final = 3  # Of CUDA graphs that get tables of their own


def answer_of_findings(findings: RunFindings, caveat: str = "") -> Answer:
    """Return the answer on a device of a run from its recorded steps alone."""
    peak = findings.worst.peak
    return Answer(
        happened=(headline(findings), *growth_sentences(findings.growth)),
        remarks=tuple(finding_sentences(findings)),
        in_use=in_use_tables(peak) if peak.rows else (),
        sections=tuple(peak_sections(findings)),
        caveat=caveat,
    )


def headline(findings: RunFindings, *, of: str = "") -> str:
    """Return the peak in one sentence.

    Args:
        of: Words behind "Peak", where the program had another one: ` of the recorded steps`.
    """
    peak, graph_bytes = findings.worst.peak, findings.graph_bytes
    if not peak.rows:
        return f"The recorded steps allocated nothing on {peak.device}. Where they train elsewhere, name it: --device."
    largest, size_bytes = next(iter(peak.by_category().items()))
    when = moment_words(peak.phase, step_words(peak.step) if peak.step else "")
    graphs = f", beside {format_bytes(graph_bytes)} of CUDA graphs" if graph_bytes else ""
    return (
        f"Peak{of}: {format_bytes(peak.peak_bytes)} on {peak.device} {when}{graphs}; "
        f"{100 * size_bytes / peak.peak_bytes:.0f} % of it {words_of(largest)}."
    )


def finding_sentences(findings: RunFindings) -> Iterator[str]:
    """Yield what a reader of the peak has to know beside it."""
    cycle, peak = findings.worst, findings.worst.peak
    if (missed := not_recorded(peak)) is not None:
        yield missed
    if peak.unexplained_bytes:
        yield counted(peak)
    yield from asleep_sentences(peak)
    yield from graph_sentences(findings)
    yield from compiled_sentences(findings)
    yield from unseen(cycle.source.recording, cycle.source.lifetimes)


def peak_sections(findings: RunFindings, *, has_parts: bool = True) -> Iterator[Section]:
    """Yield the peak with all its tables, and the memory of CUDA graphs."""
    peak = findings.worst.peak
    if peak.rows:
        tables = (*(parts_tables(peak) if has_parts else ()), *phases_tables(findings.worst))
        yield Section("The peak", tuple(_counts(findings)), tables, is_drawn=True)
        if reserved := tuple(_reserved(findings)):
            yield Section("Reserved memory", reserved)
        yield from _graphs(findings)


def _graphs(findings: RunFindings) -> Iterator[Section]:
    explained = [pool for pool in findings.graph_pools if pool.rows]
    for pool in explained[:_MORE_POOLS]:
        of = "a CUDA graph at its" if pool.num_graphs == 1 else f"{pool.num_graphs} CUDA graphs at the"
        tables = (categories_table(pool), *parts_tables(pool, has_categories=False))
        yield Section(f"In the memory of {of} capture's peak", (), tables)
    if rest := explained[_MORE_POOLS:]:
        size_bytes = sum(pool.peak_bytes for pool in rest)
        yield Section(
            "Other CUDA graphs",
            (f"{some(len(rest), 'more pool')} of CUDA graphs: {format_bytes(size_bytes)} at their peaks.",),
        )


def _counts(findings: RunFindings) -> Iterator[str]:
    yield from left_out(findings)
    peak = findings.worst.peak
    if not peak.unexplained_bytes:
        yield counted(peak)
    if not any(row.file for row in peak.rows):
        yield "By line: no line of your code made any of it."
    spread = [cycle.peak.peak_bytes for cycle in findings.parts if cycle.source.is_whole]
    least, most = format_bytes(min(spread, default=0)), format_bytes(max(spread, default=0))
    if least != most:
        yield f"The peaks of the recorded cycles differ: from {least} to {most}."


def _reserved(findings: RunFindings) -> Iterator[str]:
    """Yield the bytes requested, allocated and reserved at the peak, as far as they are known."""
    peak = findings.worst.peak
    if peak.allocator is not None:
        yield from _three_sizes(peak, peak.allocator, findings.graph_bytes)
    elif peak.reserved_bytes:
        unused = peak.reserved_bytes - peak.allocator_peak_bytes - findings.graph_bytes
        yield (
            f"Reserved from the driver at that moment: {format_bytes(peak.reserved_bytes)}, "
            f"of which {_of_graphs(findings.graph_bytes)}{format_bytes(unused)} held no tensor."
        )


def _of_graphs(size_bytes: int) -> str:
    return f"CUDA graphs work in {format_bytes(size_bytes)}, and " if size_bytes else ""


def _three_sizes(peak: Peak, allocator: AllocatorPeak, graph_bytes: int) -> Iterator[str]:
    free = f"{format_bytes(max(0, allocator.free_bytes - graph_bytes))} free"
    largest, pending = format_bytes(allocator.largest_free_bytes), allocator.pending_bytes
    yield (
        f"Requested: {format_bytes(allocator.requested_bytes)}. "
        f"Allocated, after rounding up each block: {format_bytes(peak.peak_bytes)}."
    )
    yield (
        f"Reserved from the driver: {format_bytes(allocator.reserved_bytes)}, "
        f"of which {_of_graphs(graph_bytes)}{free}"
        + ("" if graph_bytes else f", in blocks of at most {largest}")  # which may be a graph's
        + (f", and {format_bytes(pending)} freed but still used by another stream." if pending else ".")
    )
