"""Memory of a device beside torch's allocator: what the driver counts, by the calls with which it rose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracer.answers.tables import Column, Place, Section, Table, columns
from tracer.capture.run_facts import DriverLooks, KnownCall
from tracer.null_gpu.cards import CONTEXT_BYTES, MEASURED_CONTEXTS
from tracer.units import format_bytes

FIRST: Final = "CUDA's context, and what was there before the first step"
NOT_PLACED: Final = "not placed"
NOT_THERE: Final = "reserved by torch, and not on the device"
_LARGE_SHARE: Final = 0.05  # Of a device, from which the screen has a sentence


@dataclass(frozen=True, slots=True)
class BesideRow:
    """Memory that rose with one call, or that another process holds."""

    bytes: int
    what: str
    file: str | None = None  # The user's line
    line: int | None = None


@dataclass(frozen=True, slots=True)
class BesideTorch:
    """A driver's count at the end of the recorded steps: rows and `reserved_bytes` sum to `used_bytes`."""

    used_bytes: int  # Of all processes
    reserved_bytes: int  # Of that by torch's allocator
    rows: tuple[BesideRow, ...]  # What has no known place is the last


def beside_torch(driver: DriverLooks) -> BesideTorch:
    """Book each rise between two looks on the known calls between them.

    A fall takes from what has no place, and then from the latest rows: looks at 500, 530 and 520 with a call before 530
    are 500 of the first look, and 20 of the call.
    """
    first, last = driver.looks[0], driver.looks[-1]
    others = [BesideRow(one.bytes, f"{one.name}, process {one.number}") for one in driver.processes]
    rows = [*others, BesideRow(max(0, first.beside_bytes - sum(row.bytes for row in others)), FIRST)]
    for before, after in zip(driver.looks, driver.looks[1:], strict=False):
        between = [call for call in driver.calls if before.time_us <= call.time_us < after.time_us]
        if (rise := after.beside_bytes - before.beside_bytes) > 0 and between:
            rows.append(BesideRow(rise, _in_words(between), between[0].file, between[0].line))
    rest = last.beside_bytes - sum(row.bytes for row in rows)
    while rest < 0 and rows:
        row = rows.pop()
        if (rest := rest + row.bytes) > 0:
            rows.append(replace(row, bytes=rest))
            rest = 0
    rows.append(BesideRow(rest, NOT_PLACED if rest > 0 else NOT_THERE))
    return BesideTorch(last.used_bytes, last.reserved_bytes, tuple(row for row in rows if row.bytes))


def _in_words(calls: Sequence[KnownCall]) -> str:
    """Return all calls between two looks, each but the first, whose line is the row's, with its line."""
    first, *others = calls
    lines = [
        f"; {call.what} ({Path(call.file).name}:{call.line})" if call.file else f"; {call.what}" for call in others
    ]
    return f"one or more of: {first.what}{''.join(lines)}" if others else first.what


def beside_section(found: BesideTorch, device: str, *, computed: bool) -> Section:
    """Return all rows, with what they sum to; on the null GPU, with what cards were measured to take."""
    rows = tuple((Place(row.what, row.file, row.line), row.bytes) for row in found.rows)
    table = Table("by where it rose", (Column("where"), Column("memory", "bytes")), rows, is_whole=True)
    text = (
        f"At the end of the recorded steps the driver counted {format_bytes(found.used_bytes)} on {device}: "
        f"{format_bytes(found.reserved_bytes)} that torch had reserved, and "
        f"{format_bytes(found.used_bytes - found.reserved_bytes)} beside it. A rise between two looks at the "
        "driver's count stands with the calls between them that are known to take memory; without one, with what ran."
    )
    if computed:
        return Section("On the card beside torch", (text,), (table,))
    aside = f"The null GPU sets {format_bytes(CONTEXT_BYTES)} aside for each process."
    names = columns("text", "card", "torch", "CUDA", "memory", "of")
    measured = Table("measured beside torch", names, MEASURED_CONTEXTS, is_whole=True)
    return Section("On the card beside torch", (text, aside), (table, measured))


def beside_sentences(found: BesideTorch, device_bytes: int | None) -> Iterator[str]:
    """Yield a sentence on a device of which much is taken beside torch."""
    beside_bytes = found.used_bytes - found.reserved_bytes
    if device_bytes and beside_bytes > _LARGE_SHARE * device_bytes:
        largest = max(found.rows, key=lambda row: row.bytes)
        yield (
            f"Beside torch's allocator {format_bytes(beside_bytes)} of the device are taken, "
            f"{format_bytes(largest.bytes)} of them by {largest.what}; --full has all."
        )
