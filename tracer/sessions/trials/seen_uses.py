"""Looks of operators at blocks in a run that was watched, and what they say of each block; without torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from tracer.capture.objects.later_uses import LargeBlocks, LaterUses, Making, NextUse

MOST_STEPS: Final = 2
"""Steps that are followed: the rest of the step that failed, and a whole one."""
LEAST_LARGE_BYTES: Final = 1 << 20
"""Least bytes of a block whose operator is kept."""
_MOST_DRIFT: Final = 4
_LEAST_DRIFT: Final = 1_000
"""Allocations, and one in so many, by which a run may come later to the request."""
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a block that an operator reads."""

    key: object  # Equal for looks at the same elements
    size_bytes: int  # 0 where they are overwritten
    are_rows: bool = False  # Whether these are whole rows


@dataclass(frozen=True, slots=True)
class Read:
    """A look at a block, or at a part of it."""

    count: int  # Allocations by then
    row: int  # Of `uses`; -1 before the request
    step: int
    part: Elements
    into: int = 0  # Address of the result that has a value for each element, or rows for each row; 0 for none
    rows: float = 0.0  # Rows of that result for each row of the tensor; 0 where it has a value for each element
    result: int = 0  # Address of the one large result: where nothing reads that, nothing needs this look


@dataclass(slots=True)
class SeenUses:
    """Uses and origins of blocks that were seen so far."""

    until: int  # Allocations before the request that failed
    requested_bytes: int  # Bytes in use then, as requested; 0 where that is not known
    behind: int = 0  # Allocations when the operator that failed has ended; 0 before
    uses: dict[NextUse, int] = field(default_factory=dict)
    makings: dict[Making, int] = field(default_factory=dict)
    row_wise: set[int] = field(default_factory=set)  # Of these, those that make each row of rows or elements
    reads: dict[int, list[Read]] = field(default_factory=dict)  # By address
    before: dict[int, dict[tuple[object, int], Read]] = field(default_factory=dict)  # Likewise, before the request
    made: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # By address: allocations, row of `makings`
    copied: dict[int, int] = field(default_factory=dict)  # By address: bytes of distinct values of large copies
    ends: list[int] = field(default_factory=list)  # Allocations as operators behind `until` that made some ended
    step_ends: list[int] = field(default_factory=list)  # Allocations as the steps behind the request ended

    @property
    def num_steps(self) -> int:
        """Steps that have ended since the failed request, its own included."""
        return len(self.step_ends)

    def find_request(self, trace: Sequence[Mapping[str, Any]]) -> None:
        """Take the request before which as much was in use as before the one that failed, where that is a later one."""
        number = in_use_bytes = 0
        most = self.until + self.until // _MOST_DRIFT + _LEAST_DRIFT
        for entry in trace:
            if entry["action"] == "alloc":
                number += 1
                if number > self.until and in_use_bytes == self.requested_bytes:
                    break
                in_use_bytes += entry["size"]
            elif entry["action"] == "free_completed":
                in_use_bytes -= entry["size"]
        behind = next((end for end in self.ends if end >= number), 0)
        is_of_step = not self.step_ends or behind <= self.step_ends[0]
        if self.until < number <= most and in_use_bytes == self.requested_bytes and behind and is_of_step:
            self.until, self.behind = number - 1, behind

    def row_of(self, read: Read) -> int:
        """The row of a use; that of the failed operator's own is another one."""
        if read.count != self.behind:
            return read.row
        use = next(itertools.islice(self.uses, read.row, None))
        return self.uses.setdefault(replace(use, fails=True), len(self.uses))

    def are_steady(self, reads: Sequence[Read], before: Collection[Read]) -> bool:
        """True if the last step that was followed reads parts of a block that had been read before."""
        latest = {read.part.key for read in reads if read.step == MOST_STEPS - 1}
        known = {read.part.key for read in before} | {read.part.key for read in reads if read.step < MOST_STEPS - 1}
        return self.num_steps >= MOST_STEPS and bool(latest) and latest <= known


@dataclass(frozen=True, slots=True)
class _Life:
    """A block, by allocations until it was made, and until it was freed; None if it never was."""

    address: int
    number: int
    size_bytes: int
    freed: int | None

    def has(self, read: Read) -> bool:
        """True if a look at its address is one at this block."""
        return self.number <= read.count and (self.freed is None or read.count <= self.freed)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with its uses."""

    life: _Life
    use: int  # Row of the next one; `_NEVER` if nothing uses it
    is_last: bool  # Nothing uses it after that
    read_bytes: int  # Bytes that are ever read; all where other parts may be read later
    ahead_bytes: int  # Those that are read from the request on; likewise
    are_rows: bool  # Whether these are whole rows
    making: int  # Row of the operator that made it

    @property
    def share(self) -> float:
        """Share of it that is ever read."""
        return self.read_bytes / max(self.life.size_bytes, 1)


_Needed: TypeAlias = dict[int, list[_Block]]
"""Blocks by address."""


def later_uses(seen: SeenUses, trace: Sequence[Mapping[str, Any]], count: int, *, is_whole: bool) -> LaterUses:
    """Describe each block that was there at the failed request, and large ones behind it.

    Args:
        trace: Entries of the allocator's history, the latest.
        count: Allocations until now.
        is_whole: Whether all that reads a block was seen, where it is never freed.
    """
    number = count - sum(entry["action"] == "alloc" for entry in trace)
    if not number and seen.requested_bytes:
        seen.find_request(trace)
    needed: _Needed = {}
    blocks, backward = [], {row for use, row in seen.uses.items() if use.in_backward}
    # A result before what it is made of
    for life in sorted(_lives(seen, trace, number), key=lambda life: -life.number):
        blocks.append(_block(seen, life, needed, backward, is_whole=is_whole))
        needed.setdefault(life.address, []).append(blocks[-1])
    request = seen.until + 1
    there = [block for block in blocks[::-1] if block.life.number <= request]
    large = [block for block in blocks[::-1] if block.life.size_bytes >= LEAST_LARGE_BYTES]
    return LaterUses(
        distance=tuple(request - block.life.number for block in there),
        size_bytes=tuple(block.life.size_bytes for block in there),
        use=tuple(len(seen.uses) if block.use == _NEVER else block.use for block in there),
        is_last=tuple(block.is_last for block in there),
        freed=tuple(block.life.freed - seen.until if block.life.freed is not None else 0 for block in there),
        read_bytes=tuple(block.read_bytes for block in there),
        ahead_bytes=tuple(block.ahead_bytes for block in there),
        making=tuple(block.making for block in there),
        uses=tuple(seen.uses),
        makings=tuple(seen.makings),
        num_steps=seen.num_steps,
        is_to_the_end=is_whole,
        request=request,
        large=LargeBlocks(
            made=tuple(block.life.number for block in large),
            freed=tuple(block.life.freed or 0 for block in large),
            size_bytes=tuple(block.life.size_bytes for block in large),
            making=tuple(block.making for block in large),
            read_bytes=tuple(block.read_bytes for block in large),
        ),
    )


def _lives(seen: SeenUses, trace: Sequence[Mapping[str, Any]], number: int) -> Iterator[_Life]:
    """Yield the blocks that were there at the request, and large ones that were made behind it.

    Args:
        number: Allocations before the trace.
    """
    alive: dict[int, tuple[int, int]] = {}  # By address: number and size of the block
    for entry in trace:
        address = entry["addr"]
        if entry["action"] == "alloc":
            number += 1
            alive[address] = number, entry["size"]
        elif entry["action"] == "free_completed" and (block := alive.pop(address, None)) is not None:
            # The failed operator itself allocated and freed a block that no operator was given: a workspace.
            is_behind = number > seen.behind or (number == seen.behind and address in seen.reads)
            if is_behind and (block[0] <= seen.until + 1 or block[1] >= LEAST_LARGE_BYTES):
                yield _Life(address, *block, number)
    yield from (_Life(address, *block, None) for address, block in alive.items())


def _block(seen: SeenUses, life: _Life, needed: _Needed, backward: set[int], *, is_whole: bool) -> _Block:
    """Describe a block.

    Args:
        needed: Blocks that were made after it.
        backward: Rows of `uses` that are of a backward. Of a block that was made row by row, and that forward has
            looked at, a derivative needs no more than forward did: what forward's result was read for.
        is_whole: Whether all that reads the block was seen, where it is never freed.
    """
    looks_behind = [read for read in seen.reads.get(life.address, ()) if life.has(read)]
    reads = [read for read in looks_behind if read.count >= seen.behind]
    before = [read for read in seen.before.get(life.address, {}).values() if read.count >= life.number]
    shared = [(read, *_share(read, needed)) for read in (*before, *looks_behind)]
    ahead = [each for each in shared if each[0].row >= 0 and each[0].count >= seen.behind]
    made = next((row for count, row in seen.made.get(life.address, ()) if count >= life.number), len(seen.makings))
    if made in seen.row_wise:
        shared = [each for each in shared if each[0].row not in backward] or shared
    is_known = is_whole or life.freed is not None or seen.are_steady(reads, before)

    def total(shared: Sequence[tuple[Read, float, bool]]) -> int:
        parts: dict[object, int] = {}
        for read, share, _ in shared:
            whole = read.part.size_bytes
            parts[read.part.key] = min(parts.get(read.part.key, 0) + math.ceil(whole * share), whole)
        return min(sum(parts.values()), life.size_bytes) if is_known else life.size_bytes

    return _Block(
        life,
        use=seen.row_of(reads[0]) if reads else _NEVER,
        is_last=len(reads) == 1,
        read_bytes=total(shared),
        ahead_bytes=total(ahead),
        are_rows=all(are_rows for *_, are_rows in shared),
        making=made,
    )


def _share(read: Read, needed: _Needed) -> tuple[float, bool]:
    """The share of what an operator read that its result is ever read for, and whether that is of whole rows."""
    if any(not block.read_bytes for block in needed.get(read.result, ()) if block.life.has(read)):
        return 0.0, True
    found = ((block.share, block.are_rows) for block in needed.get(read.into, ()) if block.life.has(read))
    share, are_rows = next(found, (1.0, False))
    if read.rows:
        share = min(share * read.rows, 1.0) if are_rows else 1.0
    # Rows of a transposed tensor are none of the block.
    return share, read.part.are_rows and (are_rows or share >= 1.0)
