"""Tables and sections of a run's and of a snapshot's allocations: failures, changes to try first, host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracer.answers.tables import Place, Section, Table, columns, place_text
from tracer.blocks.from_snapshot.sites import NO_FRAMES, NO_PYTHON_FRAME
from tracer.blocks.kinds import BEFORE_RECORDING, meaning_of
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.answers.findings import ReplayedFindings
    from tracer.answers.out_of_memory import OutOfMemory
    from tracer.answers.peak import Peak, Share
    from tracer.answers.rows import CallerShare, Row
    from tracer.answers.why.first_changes import FirstChange, FirstChanges
    from tracer.blocks.from_snapshot.sites import Site

_MAX_FAILURES = 5
_TRY_FIRST = "What to try first"
_AT_PEAK = "The peak was at that moment: its tables show what was in use then."
_SHARE_WITH_CALLERS = 0.05
"""Share of the bytes in a table; a group with less is shown without its callers."""
_MOST_CALLERS = 4


def failure_section(
    event: OutOfMemory, *, when: str = "", said: Sequence[str] = (), has_groups: bool = True
) -> Section:
    """Return why a request failed, its sizes, and what was in use then."""
    groups = (groups_table("What was in use then", event.groups),) if has_groups and event.groups else ()
    if groups and any(group.site.frame == NO_FRAMES for group in event.groups):
        said = (*said, "Blocks without a stack were made by autograd's own thread, in backward.")
    return Section(f"{ran_out_at(event.site)}{when}", tuple(said), (_request_table(event), *groups), is_alarming=True)


def failure_sections(
    events: Sequence[OutOfMemory],
    *,
    first_time_us: int = -1,
    at_peak: Sequence[Row] = (),
    is_advised: bool = False,
) -> Iterator[Section]:
    """Yield the section of a failure of each line, the last one first.

    Args:
        at_peak: What is shown of the peak; a failure with the same blocks in use has no table of its own.
        is_advised: Whether the advice on the last one was said before.
    """
    if not events:
        return
    from tracer.answers.out_of_memory import distinct_failures

    distinct = distinct_failures(events)
    shown = [*distinct[-1:], *distinct[:-1]][:_MAX_FAILURES]
    peak = _without_callers(at_peak)
    for event in shown:
        is_peak = _without_callers(event.groups) == peak
        said = (*[event.advice] * (not is_advised or event is not events[-1]), *[_AT_PEAK] * is_peak)
        when = f", entry {event.entry:,}{since_start(event.time_us, first_time_us)}"
        yield failure_section(event, when=when, said=said, has_groups=not is_peak)
    if again := len(events) - len(shown):
        words = f"{some(again, 'more failure')}, most at lines that had failed before; --json has all of them."
        yield Section("Out of memory, earlier", (words,), is_alarming=True)


def _without_callers(groups: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(group.bytes, group.count, group.kind_words, group.site) for group in groups]


def since_start(time_us: int, first_time_us: int) -> str:
    """The time in seconds since the first entry, in words; empty where entries have no times."""
    if time_us < 0 or first_time_us < 0:
        return ""
    return f", {(time_us - first_time_us) / 1e6:,.3f} s after the first"


def ran_out_at(site: Site) -> str:
    """Return the begin of a sentence on where memory ran out."""
    if site.file is None and site.frame == NO_FRAMES:
        return "Out of memory (no stack was recorded of where)"
    return f"Out of memory at {place(site)}"


def host_sections(pinned_bytes: int) -> tuple[Section, ...]:
    """Return a section on the host memory that is pinned at the end; none without any."""
    if not pinned_bytes:
        return ()
    return (Section("Host memory", (f"{format_bytes(pinned_bytes)} of the host's memory are pinned at the end.",)),)


def first_changes_sections(first: FirstChanges | None) -> tuple[Section, ...]:
    """Return a section with the first changes to try, or that nothing helps; none where nothing was tried."""
    if first is None or (first.num_failed and not first.changes):  # which is said with the failure
        return ()
    is_said = first.saves_much and not first.num_failed  # with the peak
    sentences = first.sentences[is_said:] if first.changes else (first.nothing_helps,)
    tables = (_first_changes_table(first),) if first.changes else ()
    return (Section(_TRY_FIRST, sentences, tables, is_alarming=first.num_failed > 0),)


def _request_table(event: OutOfMemory) -> Table:
    sizes = (
        ("requested", event.asked_bytes),
        ("free on the device", event.device_free_bytes),
        ("in use", event.allocated_bytes),
        ("reserved", event.reserved_bytes),
        ("reserved but unallocated", event.unallocated_bytes),
        ("largest free block", event.largest_free_bytes),
        ("free for this request", event.usable_free_bytes),
        *([("waiting for a stream", event.pending_free_bytes)] if event.pending_free_bytes else []),
    )
    rows = tuple((name, "not recorded" if size is None else size, size) for name, size in sizes)
    return Table("The request that failed", _EXACT, rows, is_whole=True)


_EXACT = (*columns("text", ""), *columns("bytes", ""), *columns("count", "bytes"))


def _first_changes_table(first: FirstChanges) -> Table:
    """Peaks of a replay without and with each change, and how many failed requests it serves."""
    served = columns("text", "requests that then fit") if first.num_failed else ()
    sizes = columns("bytes", "allocated", "with it", "reserved", "with it", adds_up=False)
    return Table(
        "Peaks of a replay as recorded, and with the change",
        (*sizes, *served, *columns("text", "change")),
        tuple(
            (
                change.allocated_before_bytes,
                change.allocated_bytes,
                change.reserved_before_bytes,
                change.reserved_bytes,
                *([f"{change.num_served} of {first.num_failed}"] if first.num_failed else []),
                _change_cell(change),
            )
            for change in first.changes
        ),
        is_whole=True,
    )


def _change_cell(change: FirstChange) -> Place:
    if change.site is None:
        return Place(change.words)
    place = site_place(change.site)
    return Place(f"{change.words} ({place.words})", place.file, place.line)


def groups_table(title: str, groups: Sequence[Row]) -> Table:
    """Size, number, kind and allocation site of each group, and the callers of the largest."""
    most = _SHARE_WITH_CALLERS * sum(group.bytes for group in groups)
    rows = []
    for group in groups:
        place = site_place(group.site)
        callers = tuple(_callers(group.callers)) if group.bytes >= most else ()
        rows.append((group.bytes, group.count, group.kind_words, replace(place, below=callers)))
    return Table(title, (*_SIZES, *columns("label", "kind"), *columns("text", "made by")), tuple(rows))


_SIZES = (*columns("bytes", "bytes"), *columns("count", "blocks"))


def _callers(callers: Sequence[CallerShare]) -> Iterator[str]:
    """Yield the callers of a group's line, from the first frame in which its stacks differ."""
    for share in callers[:_MOST_CALLERS]:
        where = "elsewhere" if share.site is None else place_text(site_place(share.site))
        yield f"{format_bytes(share.bytes)} in {some(share.count, 'block')} from {where}"
    if rest := callers[_MOST_CALLERS:]:
        yield f"{format_bytes(sum(share.bytes for share in rest))} from {some(len(rest), 'more line')}"


def _shares_table(title: str, name: str, shares: Sequence[Share]) -> Table:
    """Size and number of blocks by name; of kinds with their meaning."""
    rows = [(share.bytes, share.count, share.name, meaning_of(share.name)) for share in shares]
    meaning = columns("text", "") if any(row[-1] for row in rows) else ()
    heads = (*_SIZES, *columns("text", name), *meaning)
    return Table(title, heads, tuple(row[: len(heads)] for row in rows))


def site_place(site: Site) -> Place:
    """The deciding frame and its line; where it is no line of Python, that is said."""
    if site.file is not None:
        return Place(site.frame, site.file, site.line)
    is_named = site.frame not in (BEFORE_RECORDING, NO_FRAMES)
    return Place(f"{site.frame}  ({NO_PYTHON_FRAME})" if is_named else site.frame)


def place(site: Site) -> str:
    """A site in a sentence: `function  file:line`."""
    return place_text(site_place(site))


def device_sections(device: ReplayedFindings) -> Iterator[Section]:
    """Yield what else there is to say of a snapshot's device: reserved memory, growth, named parts of the peak."""
    peak = device.peak
    tables = [
        by_kind_table(peak),
        *([_shares_table("By annotation", "region", peak.by_annotation)] if peak.has_annotations else []),
        *([_shares_table("By the name that the program gave", "name", peak.by_name)] if peak.has_names else []),
        *([_shares_table("By stream and pool", "stream, pool", peak.by_stream)] if len(peak.by_stream) > 1 else []),
    ]
    yield Section("The peak", (), tuple(tables))
    at_end, has_history = device.source.end_memory, device.source.num_events > 0
    moments = [("at the peak", peak.fragmentation), ("at the end", at_end)]
    rows = [
        (name, state.reserved_bytes, state.allocated_bytes, state.free_bytes, state.largest_free_bytes)
        for name, state in (moments if has_history else [("when it was taken", at_end)])
        if state is not None
    ]
    if rows:
        names = ("reserved", "allocated", "reserved but unallocated", "largest free block")
        heads = (*columns("text", ""), *columns("bytes", *names, adds_up=False))
        yield Section("Reserved memory", (), (Table("", heads, tuple(rows), is_whole=True),))
    if has_history:
        yield _growth(device)


def by_kind_table(peak: Peak) -> Table:
    """The peak by kind."""
    return _shares_table("By kind", "kind", peak.by_kind)


def _growth(device: ReplayedFindings) -> Section:
    start, end = device.source.replay.requested_bytes[[0, -1]].tolist()
    grown = end - start
    sentence = (
        f"Memory in use {'grew' if grown >= 0 else 'shrank'} by {format_bytes(abs(grown))} over the recording, from "
        f"{format_bytes(start)} to {format_bytes(end)}."
    )
    tables = (groups_table("Allocated in the recording and never freed in it", device.never_freed),)
    return Section("Growth", (sentence,), tables if device.never_freed else ())
