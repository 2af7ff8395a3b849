"""The answer of a snapshot, and of the caching allocator's model of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tracer.answers.allocator.allocator_finding import AS_RECORDED, AllocatorFinding, SettingsOutcome, WhatIf
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.answer import Answer, cause_and_change, failure_words
from tracer.answers.answer_tables import blocks_table
from tracer.answers.findings import ReplayedFindings, SnapshotFindings
from tracer.answers.history_sections import (
    by_kind_table,
    device_sections,
    failure_sections,
    first_changes_sections,
    groups_table,
    host_sections,
    since_start,
)
from tracer.answers.tables import Cell, Section, Table, columns, signed
from tracer.blocks.from_snapshot.timeline import StepLevel, step_levels
from tracer.units import format_bytes, some

MAX_DEVICES = 32
"""Shown in full; no machine has more, but a file may claim thousands."""


def answer_of_snapshot(findings: SnapshotFindings, *, file: str) -> Answer:
    """Return the answer of the worst device, with the sections of all devices."""
    on_host = host_sections(findings.pinned_bytes)
    if not findings.parts:
        return Answer((f"{file} has no device with memory.",), remarks=findings.notes, sections=on_host)
    answers = answers_of_devices(findings)
    order = sorted(range(len(answers)), key=lambda number: not answers[number].is_alarming)
    sections = [section for number in order[:MAX_DEVICES] for section in answers[number].sections]
    if others := order[MAX_DEVICES:]:
        peak = format_bytes(max(findings.parts[number].peak.peak_bytes for number in others))
        sections.append(
            Section(f"{some(len(others), 'more device')} with peaks of {peak} at most (one of them: --device)")
        )
    worst = answers[findings.parts.index(findings.worst)]
    return replace(worst, sections=(*sections, *on_host))


def answers_of_devices(findings: SnapshotFindings) -> tuple[Answer, ...]:
    """Return the answer of each device."""
    worst, notes = findings.worst if findings.parts else None, findings.notes
    return tuple(answer_of_device(device, notes=notes, is_worst=device is worst) for device in findings.parts)


def answer_of_device(device: ReplayedFindings, *, notes: tuple[str, ...] = (), is_worst: bool = True) -> Answer:
    """Return what filled a device at its peak, or as it ran out of memory.

    Args:
        is_worst: Whether the sentences are said of the device, and not its sections alone.
    """
    tried, failures = device.allocator, device.failures
    first = None if tried is None else tried.first
    why, change = cause_and_change(first)
    tables: tuple[Table, ...] = (by_kind_table(device.peak), blocks_table(device.peak.rows, "At the peak"))
    if failures:
        why, change = failure_words(failures[-1], first)
        tables = (blocks_table(failures[-1].groups),)
    asked: tuple[str, ...] = ()
    if tried is not None and tried.modelled is None:
        asked = tuple(tried.agreement)
    if tried is not None and tried.modelled is not None and tried.what_if is not None:
        asked = tuple(_explanations(tried.what_if, tried.modelled))
        tables = (_what_if_table(tried.what_if), *tables)
        change = (*change, *settings_advice(tried.what_if))
    return Answer(
        happened=(happened_on(device) if failures else peak_sentence(device),),
        why=why,
        change=change,
        remarks=(*asked, *notes, *device.notes),
        in_use=tables,
        sections=tuple(_sections(device, is_said=is_worst)),
        is_alarming=bool(failures),
    )


def happened_on(device: ReplayedFindings) -> str:
    """The last failure of a device, and how many there were; a convolution asks several times before it gives up."""
    words, number = device.failures[-1].happened(device.peak.device), len(device.failures)
    return words if number == 1 else f"{words} It is the last of {number} failed requests."


def peak_sentence(device: ReplayedFindings) -> str:
    """The peak of a device, which counts requested bytes, and what torch reports beside it."""
    peak = device.peak
    sizes = f"{format_bytes(peak.peak_bytes)} requested"
    if (memory := peak.fragmentation) is not None:
        sizes += (
            f", {format_bytes(memory.allocated_bytes)} allocated and {format_bytes(memory.reserved_bytes)} reserved"
        )
    before = f"; {format_bytes(peak.before_recording_bytes)} are from before the recording" * bool(
        peak.before_recording_bytes
    )
    return f"Peak of {peak.device}: {sizes}, {_when(device)}{before}."


def _sections(device: ReplayedFindings, *, is_said: bool) -> Iterator[Section]:
    peak, tried, steps = device.peak, device.allocator, step_levels(device.source)
    exact = [("requested", peak.peak_bytes)]
    if (memory := peak.fragmentation) is not None:
        exact += [("allocated, after the allocator's rounding", memory.allocated_bytes)]
        exact += [("reserved, taken from the device", memory.reserved_bytes)]
    if peak.before_recording_bytes:
        exact.append(("requested before the recording", peak.before_recording_bytes))
    heads = (*columns("text", ""), *columns("bytes", "", adds_up=False), *columns("count", "bytes", adds_up=False))
    sizes = Table("", heads, tuple((name, size, size) for name, size in exact))
    history = f"{some(device.source.num_events, 'entry')} of history"
    name = peak.device.capitalize()
    title = f"{name}: {history}, peak {_when(device)}"
    yield Section(title, device.notes, (sizes,), is_drawn=True)
    since = device.source.first_time_us
    yield from failure_sections(device.failures, first_time_us=since, at_peak=peak.rows, is_advised=is_said)
    yield from first_changes_sections(None if tried is None else tried.first)
    filled = groups_table("What filled it, by line and kind", peak.rows)
    yield Section("At the peak", (), (filled,), is_drawn=True)
    yield from device_sections(device)
    if len(steps) > 1:
        yield _steps_section(name, steps)
    if tried is not None:
        yield from allocator_sections(tried, peak.device, is_said=is_said)


def _when(device: ReplayedFindings) -> str:
    peak = device.peak
    if peak.position < 0:
        return "at the start of the recording" if device.source.num_events else "as the snapshot was taken"
    phase = f", in {peak.phase}" if peak.phase else ""
    return f"after entry {peak.position:,}{since_start(peak.time_us, device.source.first_time_us)}{phase}"


def _steps_section(device: str, steps: Sequence[StepLevel]) -> Section:
    """Tabulate the bytes in use at the end of each step."""
    changes: list[int | str] = ["", *(step.end_bytes - before.end_bytes for before, step in pairwise(steps))]
    rows = tuple(
        (n, step.end_bytes, change, step.peak_bytes)
        for n, (step, change) in enumerate(zip(steps, changes, strict=True), 1)
    )
    heads = (*columns("count", "step", adds_up=False), *columns("bytes", "at its end", adds_up=False))
    heads = (*heads, *columns("change", "change"), *columns("bytes", "peak", adds_up=False))
    whole = signed(steps[-1].end_bytes - steps[0].end_bytes)
    said = f"{some(len(steps), 'step')}; from the first to the last: {whole}."
    return Section(f"{device}, step by step of the optimizer", (said,), (Table("", heads, rows),))


def allocator_sections(finding: AllocatorFinding, device: str, *, is_said: bool = False) -> Iterator[Section]:
    """Yield how far the model agrees, why so much is reserved, and what was asked about settings."""
    if not finding.agreement and not finding.at_end.rows:
        return
    tables = tuple(_reserved_tables(finding))
    yield Section(f"Allocator of {device}", tuple(finding.agreement), tables)
    if finding.what_if is not None and finding.modelled is not None:
        what_if = finding.what_if
        said = () if is_said else tuple(_explanations(what_if, finding.modelled))
        yield Section("Other settings", said, (_what_if_table(what_if),))


def _reserved_tables(finding: AllocatorFinding) -> Iterator[Table]:
    """Both moments side by side, each with rows that sum to what was reserved."""
    moments = [moment for moment in (finding.at_peak, finding.at_end) if moment is not None]
    parts = [{(row.pool, row.stream, row.reason): row.bytes for row in moment.rows} for moment in moments]
    if not any(parts):
        return

    def cells(sizes: Iterable[int]) -> tuple[Cell, ...]:
        shares = (
            (size, size / moment.bytes if moment.bytes else "") for size, moment in zip(sizes, moments, strict=True)
        )
        return tuple(cell for pair in shares for cell in pair)

    names = ("most reserved", "at the end")[-len(moments) :]
    heads = tuple(column for name in names for column in (*columns("bytes", name), *columns("share", "")))
    rows = tuple(
        (*cells(part.get(key, 0) for part in parts), pool if stream == 0 else f"{pool}, stream {stream:#x}", reason)
        for key in dict.fromkeys(key for part in parts for key in part)
        for pool, stream, reason in [key]
    )
    footer = (*cells(sum(part.values()) for part in parts), "", "reserved")
    words = (*columns("label", "pool"), *columns("text", "why"))
    yield Table("Why so much is reserved", (*heads, *words), rows, footer)


def _what_if_table(what_if: WhatIf) -> Table:
    on_gpu, is_limited = what_if.gpu_memory is not None, what_if.capacity is not None
    heads = (
        *(*columns("bytes", "peak", "saved"), *columns("count", "calls")),
        *(columns("count", "retries") if is_limited else ()),
        *(columns("text", "failed requests") if what_if.num_failed else ()),
        *(columns("text", f"on {format_bytes(what_if.gpu_memory or 0)}") if on_gpu else ()),
        *columns("text", "settings"),
    )
    rows: list[tuple[Cell, ...]] = []
    for row in what_if.rows:
        outcome = row.outcome
        limited = [outcome.num_retries] if is_limited else []
        has_failed = outcome.failure is not None
        num_served = what_if.num_failed - len(outcome.unserved)
        words = "fails earlier" if has_failed else f"{num_served:,} of {what_if.num_failed:,} served"
        served = [words] if what_if.num_failed else []
        fits = [_fits(row, what_if)] if on_gpu else []
        name = "as recorded" if row.settings == AS_RECORDED else row.settings
        saved = "" if row.settings == AS_RECORDED or has_failed else row.saved_bytes
        sizes = (outcome.reserved_peak_bytes, saved, outcome.num_driver_calls)
        rows.append((*sizes, *limited, *served, *fits, name))
    title = "Reserved peak of the same requests under other settings"
    return Table(title, heads, tuple(rows))


def settings_advice(what_if: WhatIf) -> tuple[str, ...]:
    """Return the sentence on the best of the settings that were asked about; none where nothing was asked."""
    return (_advice(what_if),) if len(what_if.rows) > 1 else ()


def _fits(row: SettingsOutcome, what_if: WhatIf) -> str:
    if row.on_gpu is None:
        return ""
    if row.on_gpu.failure is not None:
        return "out of memory"
    retries = row.on_gpu.num_retries
    runs = "gets past the failure" if what_if.ends_by_failure else "runs"
    return f"{runs}, {some(retries, 'retry')}" if retries else runs


def _explanations(what_if: WhatIf, modelled: Modelled) -> list[str]:
    sentences = _what_was_had(what_if)
    for row in what_if.rows:
        name = "As recorded" if row.settings == AS_RECORDED else row.settings
        failure = row.on_gpu.failure if row.on_gpu is not None else row.outcome.failure
        if failure is not None:
            at_entry = f"at entry {failure.entry:,} of {modelled.history.num_entries:,}"
            where = "before the recording begins" if failure.entry < 0 else at_entry
            in_use = (
                f"{format_bytes(failure.allocated_bytes)} in use of {format_bytes(failure.reserved_bytes)} reserved"
            )
            sentences.append(f"{name}: a request for {format_bytes(failure.size)} fails {where}, with {in_use}.")
    sentences.append(what_it_is_not(what_if))
    if what_if.gpu_memory is not None and what_if.ends_by_failure:
        sentences.append(
            "The recording ends by the request that failed, so it is no whole run: on a larger GPU the program would "
            "go on and ask for more."
        )
    return sentences


def _what_was_had(what_if: WhatIf) -> list[str]:
    """Sentences on the limit of each replay, and on a replay of the recorded settings that misses the recorded peak."""
    sentences = []
    if what_if.capacity is not None:
        sentences.append(
            "The recording used all that the device had for it: "
            f"each replay is limited to {format_bytes(what_if.capacity)} too."
        )
    off = what_if.rows[0].outcome.reserved_peak_bytes - what_if.recorded_peak_bytes
    if abs(off) * 100 >= what_if.recorded_peak_bytes and what_if.rows[0].outcome.failure is None:
        sentences.append(
            f"The recording itself had {format_bytes(what_if.recorded_peak_bytes)} reserved, "
            f"{format_bytes(abs(off))} {'less' if off > 0 else 'more'} than these requests from a clean allocator: "
            "what was cached before the recording is not in the table."
        )
    return sentences


def _advice(what_if: WhatIf) -> str:
    best, recorded = what_if.best, what_if.rows[0].outcome
    served = len(recorded.unserved) - len(best.outcome.unserved)
    if served > 0 and best.outcome.failure is None:
        return (
            f"With PYTORCH_CUDA_ALLOC_CONF={best.settings}, {served} of {some(what_if.num_failed, 'failed request')} "
            "would have been served."
        )
    if best.saved_bytes * 100 < recorded.reserved_peak_bytes:
        return "None of these settings saves 1 % of the peak."
    percent = 100 * best.saved_bytes / recorded.reserved_peak_bytes
    return (
        f"PYTORCH_CUDA_ALLOC_CONF={best.settings} reserves the least: {format_bytes(best.saved_bytes)} less "
        f"({percent:.1f} %), with {best.outcome.num_driver_calls:,} driver calls instead of "
        f"{recorded.num_driver_calls:,}."
    )


def what_it_is_not(what_if: WhatIf) -> str:
    """Return a sentence on the limits of these answers."""
    before = "" if what_if.starts_clean else ", without what was cached before the recording"
    gpu = "" if what_if.gpu_memory is None else "; the CUDA context and libraries need GPU memory in addition"
    return (
        f"These figures are for a clean allocator and exactly these requests{before}; a program that reacts to its "
        f"memory would make others{gpu}."
    )
