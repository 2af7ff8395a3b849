"""A row of a peak, how blocks are put together to rows, and rows as a tree of modules.

No torch is imported, so that reading a snapshot does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, Final

import numpy as np

from tracer.arrays import Grouped, Int, PerBlock, grouped
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site, Sites
from tracer.blocks.kinds import BEFORE_RECORDING, Evidence, Kind
from tracer.blocks.table import BEFORE, NOT_KNOWN, NOT_RECORDED, Blocks, Phase

_PHASES: Final[dict[int, str]] = {BEFORE: BEFORE_RECORDING, NOT_RECORDED: "not recorded", NOT_KNOWN: ""}
_PHASES.update((phase, phase.name.lower()) for phase in Phase)


@dataclass(frozen=True, slots=True)
class Row:
    """Equal blocks. The rows of a peak sum to it."""

    bytes: int
    count: int
    category: str  # Name of their `Kind`
    torch_category: str | None
    evidence: str  # How the kind is known; of a snapshot, that of most bytes
    phase: str  # In which they were made, or `before recording`, or `not recorded`; empty where it is not known
    module: str | None
    op: str | None
    file: str | None
    line: int | None
    name: str | None = None  # Of the live tensor observed at its address: a parameter, a buffer, an input
    step: str | None = None
    caller_file: str | None = None  # Where the line is a library's: the user's line that led there
    caller_line: int | None = None
    fused_with: str | None = None
    """In compiled code: the lines of the other operators that were fused into the same buffer, as `file:line`."""
    is_compiled: bool = False
    """True if code that torch.compile generated allocated it: the operator is then a kernel and a buffer."""
    requested_bytes: int | None = None  # Requested, before rounding; None without the allocator's history
    shape: tuple[int, ...] | None = None
    """Shape of the first tensor of each block that an operator was given; None where none was."""
    dtype: str | None = None  # Of the same tensor, such as `float32`
    function: str | None = None  # Name of the line's function; without Python frames the autograd node or operation
    # That of the most bytes, innermost frame first, without allocator and interpreter; None where nobody asked.
    stack: tuple[str, ...] | None = None
    # The blocks divided by the first frame above the line in which their stacks differ; empty if none differs, or where
    # nobody asked.
    callers: tuple[CallerShare, ...] = ()
    in_documents: ClassVar = (
        "bytes", "count", "kind", "evidence", "is_before_recording", "site", "stack", "callers"
    )  # fmt: skip

    @property
    def kind(self) -> Kind:
        """The kind of the blocks."""
        return Kind[self.category]

    @property
    def is_before_recording(self) -> bool:
        """True if the blocks were made before the recording; False for a state without history."""
        return self.phase == BEFORE_RECORDING

    @property
    def site(self) -> Site:
        """The line to blame; of backward that of its operation of forward, where it is certain, and says so."""
        return Site(
            self.function or (BEFORE_RECORDING if self.is_before_recording else NO_FRAMES), self.file, self.line
        )

    @property
    def kind_words(self) -> str:
        """The kind for a table, as `parameter, before recording` where neither kind nor line say that."""
        says_before = self.kind is Kind.BEFORE_RECORDING or self.site.frame == BEFORE_RECORDING
        is_unsaid = self.is_before_recording and not says_before
        return f"{self.kind.words}, {BEFORE_RECORDING}" if is_unsaid else self.kind.words

    @property
    def ties(self) -> tuple[Kind, str, str, int]:
        """The key by which rows of equal bytes are sorted."""
        return self.kind, self.site.frame, self.file or "", self.line or 0

    @property
    def made_by(self) -> str | None:
        """The operator, or where none is known the function."""
        return self.op or self.function

    def values(self) -> dict[str, Any]:
        """The fields of a row in peak.json, by name."""
        return {name: getattr(self, name) for name in ROW_FIELDS}


ROW_FIELDS: Final = tuple(one.name for one in fields(Row) if one.name not in ("function", "stack", "callers"))
"""Fields of a row in a peak.json, in a table of pandas and on the page."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """Something that a row says of its blocks: a column of theirs, and what its numbers stand for."""

    fields: tuple[str, ...]  # Fields of `Row` that it fills
    column: Callable[[Blocks], PerBlock[Int]]
    values: Callable[[Blocks, int], tuple[Any, ...]]  # Of these fields, for a number of the column


def _said(field: str, name: str = "") -> RowKey:
    """A column of `Blocks.said`, which has the name of the field where it is not named."""
    column = name or field
    return RowKey((field,), lambda blocks: blocks.said_of(column), lambda blocks, number: (blocks.value(number),))


def _place(blocks: Blocks, number: int) -> tuple[str | None, str | None, int | None]:
    site = blocks.value(number)
    if site is None:
        return None, None, None
    return site.frame if site.frame and site.frame != NO_FRAMES else None, site.file, site.line


def _compiled(blocks: Blocks, number: int) -> tuple[str | None, bool]:
    origin = blocks.value(number)
    fused = ", ".join(f"{file}:{line}" for file, line in origin.fused) if origin is not None else ""
    return fused or None, origin is not None


def _stack(blocks: Blocks, number: int) -> tuple[tuple[str, ...] | None]:
    return (blocks.sites.readable(number) if blocks.sites is not None and number >= 0 else None,)


ROW_KEYS: Final = (
    RowKey(("category",), lambda blocks: blocks.kind, lambda _, number: (Kind(number).name,)),
    _said("torch_category"),
    RowKey(("evidence",), lambda blocks: blocks.evidence, lambda _, number: (Evidence(number).text,)),
    RowKey(("phase",), lambda blocks: blocks.phase, lambda _, number: (_PHASES[number],)),
    RowKey(("step",), lambda blocks: blocks.step, lambda blocks, number: (blocks.value(number),)),
    _said("module", "owner"),
    _said("op", "made_by"),
    RowKey(("function", "file", "line"), lambda blocks: blocks.place, _place),
    RowKey(
        ("caller_file", "caller_line"),
        lambda blocks: blocks.said_of("caller"),
        lambda blocks, number: blocks.value(number) or (None, None),
    ),
    RowKey(("name",), lambda blocks: blocks.name, lambda blocks, number: (blocks.value(number),)),
    RowKey(("fused_with", "is_compiled"), lambda blocks: blocks.origin, _compiled),
    _said("shape"),
    _said("dtype"),
    RowKey(("stack",), lambda blocks: blocks.stack, _stack),
)
"""The keys of rows: blocks that differ in one are of two rows.

A new key is a line here and a field of `Row`, and one line in the maker that knows it, see `Blocks.said`.
"""
_SAID: Final = tuple(chain.from_iterable(key.fields for key in ROW_KEYS))
BY_LINE: Final = ("evidence", "stack")
"""Merged where a line has one row: it says that of most bytes."""


def group_rows(
    blocks: Blocks, *, merged: Collection[str] = (), with_callers: bool = False
) -> tuple[tuple[Row, ...], PerBlock[Int]]:
    """Put equal blocks together, the largest rows first.

    Args:
        merged: Fields that tell no rows apart; a row has the value of most of its bytes.

    Returns:
        The rows, and [B] the row of each block.
    """
    parts = grouped([key.column(blocks) for key in ROW_KEYS], lambda *numbers: numbers)
    values = [cache(partial(key.values, blocks)) for key in ROW_KEYS]
    apart = [at for at, key in enumerate(ROW_KEYS) if key.fields[0] not in merged]
    numbers_of = parts.keys
    groups = grouped([np.arange(len(numbers_of))], lambda part: tuple(values[at](numbers_of[part][at]) for at in apart))
    part_bytes, row_of = np.array(parts.sums(blocks.size_bytes), np.int64), groups.of_row[parts.of_row]
    by_row = Grouped(groups.keys, row_of)
    requested, num_unknown = by_row.sums(blocks.requested_bytes), by_row.sums(blocks.requested_bytes < 0)
    by_bytes = np.lexsort((-part_bytes, groups.of_row))  # of each row the part of most bytes first
    largest = by_bytes[np.unique(groups.of_row[by_bytes], return_index=True)[1]].tolist()
    sums = zip(largest, by_row.sums(blocks.size_bytes), by_row.counts(), requested, num_unknown, strict=True)
    rows = []
    for part, size, count, requested_bytes, unknown in sums:
        said = chain.from_iterable(value(number) for value, number in zip(values, numbers_of[part], strict=True))
        # One block of unknown request makes that of its row unknown.
        fields_said: dict[str, Any] = dict(zip(_SAID, said, strict=True))
        rows.append(Row(bytes=size, count=count, requested_bytes=None if unknown else requested_bytes, **fields_said))
    if with_callers:
        rows = [
            replace(row, callers=callers) for row, callers in zip(rows, _callers(blocks, parts, groups), strict=True)
        ]
    order = sorted(range(len(rows)), key=lambda row: (-rows[row].bytes, *(rows[row].ties if with_callers else ())))
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    return tuple(rows[row] for row in order), place[row_of]


def rows_of_lines(blocks: Blocks) -> tuple[Row, ...]:
    """Rows by kind, line, and whether they were there before the recording, with callers; largest first."""
    return group_rows(blocks, merged=BY_LINE, with_callers=True)[0]


@dataclass(frozen=True, slots=True)
class CallerShare:
    """The blocks of a row that have one caller."""

    site: Site | None  # The caller's line; of blocks that have none, where others have one, None
    bytes: int
    count: int


def _callers(blocks: Blocks, parts: Grouped[Any], groups: Grouped[Any]) -> Iterator[tuple[CallerShare, ...]]:
    """Yield the callers of each group of parts; a block of backward has those of its operation of forward."""
    _, first = np.unique(parts.of_row, return_index=True)
    stack = np.where(blocks.forward < 0, blocks.stack, blocks.forward)[first].tolist()
    size, count = parts.sums(blocks.size_bytes), parts.counts()
    for members in groups.rows():
        called = [(stack[part], size[part], count[part]) for part in members.tolist()]
        yield callers_of(called, blocks.sites) if blocks.sites is not None else ()


def callers_of(stacks: Sequence[tuple[int, int, int]], sites: Sites) -> tuple[CallerShare, ...]:
    """Divide blocks of one line by the first frame above it in which their stacks differ; largest first.

    Returns:
        Shares that sum to the blocks; none where nothing differs.
    """
    if len(stacks) < 2:
        return ()
    of_stack = [sites.callers(stack) for stack, _, _ in stacks]
    shortest, longest = min(map(len, of_stack)), max(map(len, of_stack))
    differing = (depth for depth in range(shortest) if len({callers[depth] for callers in of_stack}) > 1)
    depth = next(differing, shortest)
    if depth == longest:
        return ()
    sums: dict[Site | None, tuple[int, int]] = {}
    for callers, (_, size, count) in zip(of_stack, stacks, strict=True):
        site = callers[depth] if depth < len(callers) else None
        total, number = sums.get(site, (0, 0))
        sums[site] = total + size, number + count
    shares = (CallerShare(site, size, count) for site, (size, count) in sums.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, str(share.site))))


NO_MODULE = "(no module)"


def moment_words(phase: str | None, step: str = "") -> str:
    """Return the moment of a peak: `in backward of step 3`, `at the start of the recording`; empty if not known."""
    if phase and phase.startswith("the "):
        return f"at {phase}"
    words = "the optimizer" if phase == "optimizer" else phase
    where = " of ".join(filter(None, [words, step]))
    return f"in {where}" if where else ""


@dataclass(slots=True)
class ModuleNode:
    """A module of the tree and the modules below it."""

    path: str  # Dotted path; empty for the root, which stands for everything
    own_bytes: int = 0
    total_bytes: int = 0  # Its own and those of all modules below it
    children: list[ModuleNode] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, ModuleNode]]:
        """Depth and node, this one first, larger children before smaller ones."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


def module_tree(rows: Iterable[Row]) -> ModuleNode:
    """Add up rows along their module paths.

    Returns:
        The root; its total is the sum of all rows, and every node's total is its own bytes plus its children's totals.
    """
    root = ModuleNode("")
    nodes = {"": root}
    for row in rows:
        node = _node(nodes, row.module or NO_MODULE)
        node.own_bytes += row.bytes
    _add_up(root)
    return root


def _node(nodes: dict[str, ModuleNode], path: str) -> ModuleNode:
    if path not in nodes:
        parent = "" if path.startswith("(") else path.rpartition(".")[0]
        nodes[path] = ModuleNode(path)
        _node(nodes, parent).children.append(nodes[path])
    return nodes[path]


def _add_up(node: ModuleNode) -> int:
    node.total_bytes = node.own_bytes + sum(_add_up(child) for child in node.children)
    node.children.sort(key=lambda child: -child.total_bytes)
    return node.total_bytes
