"""The answer of `predict --law`: the largest size, what carries the peak where, and how far checks agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tracer.allocator.law import Law
from tracer.answers.answer import Answer
from tracer.answers.law import FoundLaw
from tracer.answers.tables import Column, Table
from tracer.null_gpu.cards import Devices
from tracer.units import format_bytes, some

_MOST_ROWS = 8
_ESTIMATE = 0.01
"""Share of a run's peak by which a law is off that is an estimate."""


def answer_of_law(found: FoundLaw, devices: Devices, base: Sequence[int]) -> Answer:
    """Return the answer.

    Args:
        base: The sizes where the first one is varied alone.
    """
    law, usable_bytes = found.law, devices.card.usable_bytes
    first, *others = law.names
    (low, high), rest = law.ranges[0], dict(zip(others, base[1:], strict=True))
    with_rest = "".join(f" with {name} {number:,}" for name, number in rest.items())
    largest = law.largest(usable_bytes, **rest)
    if largest < low:
        happened = f"Not even {first} {low:,} fits on {devices.words}{with_rest}."
    elif largest == high:
        happened = f"All of {first} up to {high:,} fits on {devices.words}{with_rest}."
    else:
        happened = f"The largest {first} that fits on {devices.words} is {largest:,}{with_rest}."
    most = min(high, max(2 * largest, low + 1, *(sizes[0] for sizes in found.sizes)))
    stretches = list(_stretches(law, low, most, base[1:]))
    bends = [
        f"{'Up to' if number == 0 else 'From'} {first} {(end if number == 0 else start):,} the peak is at {at}: "
        f"{format_bytes(each)} for each one more."
        for number, (start, end, at, each) in enumerate(stretches)
    ]
    before, behind = list[str](), list[str]()
    if found.error:
        words = "An estimate" if found.error > _ESTIMATE else "Not exact"
        before.append(f"{words}: at sizes that it had not been made from, this law was up to {found.error:.2%} off.")
    least, greatest = law.bounds((max(low, min(largest, most)), *base[1:]))
    if greatest > (1 + _ESTIMATE) * least:
        between = f"between {format_bytes(least)} and {format_bytes(greatest)}"
        behind.append(f"Asked as in its runs it needs {between} there; these follow no order, and others may occur.")
    return Answer(
        happened=(*before, happened, *behind, *bends[:4]),
        remarks=tuple(_remarks(found)),
        in_use=(_table(law, low, most, base[1:]),),
    )


def _stretches(law: Law, low: int, high: int, rest: Sequence[int]) -> Iterator[tuple[int, int, str, int]]:
    """Yield the stretches of the first size in which one line has the peak: both ends, the line, bytes for one more."""

    def at(size: int) -> str:
        return law.peak((size, *rest)).at

    ends, size = [low], low
    while size < high:
        after = min(high, max(size + 1, size * 5 // 4))
        if at(size) != at(after):
            below, above = size, after
            while above - below > 1:
                middle = (below + above) // 2
                below, above = (middle, above) if at(middle) == at(size) else (below, middle)
            ends.append(above)
        size = after
    for start, behind in pairwise([*ends, high + 1]):
        last = behind - 1
        more = law.peak((last, *rest)).allocated_bytes - law.peak((start, *rest)).allocated_bytes
        yield start, last, at(start), more // max(1, last - start)


def _remarks(found: FoundLaw) -> Iterator[str]:
    law = found.law
    for check in found.checks:
        at = " ".join(f"{name} {number:,}" for name, number in zip(law.names, check.sizes, strict=True))
        allocated, reserved = (f"{error:+.2%} off" if error else "exact" for error in check.errors)
        yield f"A run that the law had not been made from, {at}: allocated {allocated}, reserved {reserved}."
    if near := sum(not block.is_exact for block in law.blocks):
        yield f"Of {near:,} of {len(law.blocks):,} sizes of blocks no sum is known: they are near, not exact."
    if law.choices:
        yield f"The program asks for memory in {len(law.ways):,} ways, each at some of the sizes."
    runs = some(len(found.sizes), "run")
    yield f"{runs} in all; elsewhere the law is replayed, and is off where a library takes another way."


def _table(law: Law, low: int, high: int, rest: Sequence[int]) -> Table:
    """Peaks at some of the first size, and what fills most of them."""
    sizes = sorted({low, high, *(round(low * (high / low) ** (part / (_MOST_ROWS - 1))) for part in range(_MOST_ROWS))})
    rows = []
    for size in sizes:
        peak = law.peak((size, *rest))
        label = next(iter(peak.by_label), "")
        rows.append((size, peak.allocated_bytes, peak.reserved_bytes, label))
    columns = (
        Column(law.names[0], "count", adds_up=False),
        Column("allocated", "bytes", adds_up=False),
        Column("reserved", "bytes", adds_up=False),
        Column("most of it is"),
    )
    return Table("", columns, tuple(rows), is_whole=True)
