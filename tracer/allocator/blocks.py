"""Blocks, and the ordered lists of free ones that the allocator searches."""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import Final

PoolId = tuple[int, int]
DEFAULT_POOL: Final[PoolId] = (0, 0)

RANK_BITS = 96  # 32 for the counter of a segment, 64 for an address
ADDRESS_MASK: Final = (1 << 64) - 1
NEVER = float("inf")


class State(IntEnum):
    """The state of a block's memory."""

    FREE = 0
    USED = 1
    PENDING = 2  # Its free was requested, but another stream may still be working with it
    UNMAPPED = 3  # Addresses of an expandable segment without memory behind them


FREE, USED, PENDING, UNMAPPED = State.FREE, State.USED, State.PENDING, State.UNMAPPED


class VirtualRange:
    """The addresses that one expandable segment may grow into."""

    __slots__ = ("base", "page", "size")

    def __init__(self, base: int, size: int, page: int) -> None:
        self.base, self.size, self.page = base, size, page


class Block:
    """A piece of a segment. Its address never changes: a merge keeps the front block, a split makes a new rear one.

    Attributes:
        rank: Counter of its segment and address in one number; orders free blocks of one size.
        size: Bytes, as rounded.
        requested: What was asked for; 0 unless used or pending.
        home: The list it belongs to when it is free.
        range: The range of its expandable segment; None in a plain segment.
        previous: Its neighbour at lower addresses of the same segment.
        next: Its neighbour at higher addresses.
        streams: Other streams that use it.
        made_at: Searches of its pool when it was put into the list.
        label: A number of the caller's, for finding out who owns it.
    """

    __slots__ = (
        "home",
        "label",
        "made_at",
        "next",
        "previous",
        "range",
        "rank",
        "requested",
        "size",
        "state",
        "streams",
    )

    def __init__(
        self, rank: int, size: int, home: FreeBlocks, range_: VirtualRange | None = None, state: State = FREE
    ) -> None:
        self.rank, self.size, self.home, self.range, self.state = rank, size, home, range_, state
        self.requested, self.made_at, self.label = 0, 0, -1
        self.previous: Block | None = None
        self.next: Block | None = None
        self.streams: set[int] | None = None

    @property
    def address(self) -> int:
        """Address of the block's first byte."""
        return self.rank & ADDRESS_MASK

    @property
    def end(self) -> int:
        """The first address behind it."""
        return (self.rank & ADDRESS_MASK) + self.size

    @property
    def is_split(self) -> bool:
        """True if the block shares its segment with others."""
        return self.previous is not None or self.next is not None

    def cut(self, size: int) -> Block:
        """Keep the first bytes; the rest becomes a block of the same state behind it, in no list yet."""
        rest = Block(self.rank + size, self.size - size, self.home, self.range, self.state)
        rest.previous, after = self, self.next
        rest.next = after
        if after is not None:
            after.previous = rest
        self.next, self.size = rest, size
        return rest

    def merge_next(self) -> None:
        """Merge the next block into this one; the caller has taken it out of its list."""
        merged = self.next
        assert merged is not None
        self.size += merged.size
        self.next = after = merged.next
        if after is not None:
            after.previous = self


class FreeBlocks:
    """The free and the unmapped blocks of one pool and one stream.

    Free blocks are ordered by size, then rank. Two lists side by side are searched and changed faster than any tree:
    real programs have some hundred free blocks, and moving ten thousand pointers takes a microsecond.

    Attributes:
        keys: Size and rank of each free block, ascending.
        blocks: The free blocks in the same order.
        unmapped: Addresses of the unmapped blocks, ascending.
        unmapped_blocks: The unmapped blocks in the same order.
        min_rest: A remainder of at least this many bytes is split off ...
        max_cut: ... for requests below this size.
    """

    __slots__ = ("blocks", "keys", "max_cut", "min_rest", "pool", "stream", "unmapped", "unmapped_blocks")

    def __init__(self, pool: BlockPool, stream: int, min_rest: float, max_cut: float) -> None:
        self.pool, self.stream, self.min_rest, self.max_cut = pool, stream, min_rest, max_cut
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[int] = []
        self.unmapped_blocks: list[Block] = []

    def first_fit(self, size: int) -> int:
        """Position of the smallest free block with at least this many bytes; behind the last one if there is none."""
        return bisect_left(self.keys, size << RANK_BITS)

    def add(self, block: Block) -> None:
        """Put a block in as a free one."""
        block.state, block.made_at = FREE, self.pool.searches
        key = block.size << RANK_BITS | block.rank
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)

    def remove(self, block: Block) -> None:
        """Take a free block out, whatever is to become of it."""
        at = bisect_left(self.keys, block.size << RANK_BITS | block.rank)
        while self.blocks[at] is not block:  # a recording that contradicts itself has two blocks at one address
            at += 1
        del self.keys[at], self.blocks[at]

    def add_unmapped(self, block: Block) -> None:
        """Put a block in as an unmapped one."""
        block.state = UNMAPPED
        at = bisect_left(self.unmapped, block.address)
        self.unmapped.insert(at, block.address)
        self.unmapped_blocks.insert(at, block)

    def remove_unmapped(self, block: Block) -> None:
        """Take an unmapped block out."""
        at = bisect_left(self.unmapped, block.address)
        while self.unmapped_blocks[at] is not block:  # ranges may overlap where only what was mapped is known of them
            at += 1
        del self.unmapped[at], self.unmapped_blocks[at]


class BlockPool:
    """The small or the large half of the default pool or of a private one.

    Attributes:
        owner: The pool's number; `DEFAULT_POOL` or a private one's.
        is_small: Whether it serves requests of up to 1 MiB.
        is_expandable: Whether its segments grow in place.
        searches: How often a free block was looked for, the clock of the garbage collection.
    """

    __slots__ = ("by_stream", "is_expandable", "is_small", "owner", "searches")

    def __init__(self, owner: PoolId, *, is_small: bool, is_expandable: bool) -> None:
        self.owner, self.is_small, self.is_expandable = owner, is_small, is_expandable
        self.searches = 0
        self.by_stream: dict[int, FreeBlocks] = {}

    def in_order(self) -> list[Block]:
        """Return the free blocks, by stream, size and rank."""
        return [block for _, home in sorted(self.by_stream.items()) for block in home.blocks]


class PrivatePool:
    """A pool of CUDA graphs or of a `torch.cuda.MemPool`.

    Attributes:
        users: Graphs and pool objects that refer to it; at 0 its memory may be released.
        small: Its half for requests of up to 1 MiB.
        large: Its other half.
    """

    __slots__ = ("large", "owner", "small", "users")

    def __init__(self, owner: PoolId, *, is_expandable: bool) -> None:
        self.owner, self.users = owner, 1
        self.small = BlockPool(owner, is_small=True, is_expandable=is_expandable)
        self.large = BlockPool(owner, is_small=False, is_expandable=is_expandable)


def united(block: Block, state: int) -> Block:
    """A block that is in no list, merged with its neighbours of this state, which are taken out of theirs."""
    take = block.home.remove if state == FREE else block.home.remove_unmapped
    before, after = block.previous, block.next
    if after is not None and after.state == state:
        take(after)
        block.merge_next()
    if before is not None and before.state == state:
        take(before)
        before.merge_next()
        block = before
    return block
