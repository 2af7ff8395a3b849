"""What a rehearsal writes down: storages and their lives, operators, calls, and who read and wrote what.

Lists that grow row by row; `columns` makes arrays of them. Time is a counter: every row gets its own microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NONE = -1
TICK_NS = 1000
READ, WRITTEN, ALLOCATED, FREED = 1, 2, 4, 8


class Interned(dict[Any, int]):
    """Distinct values, numbered in order of appearance; a subscript gives the number."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


@dataclass(slots=True, eq=False)
class StorageLog:
    """Tables of a rehearsal, one list a table.

    Attributes:
        strings: All names, interned.
        shapes: All sets of input shapes, interned.
        frames: (file, line, function, whether it is the user's) of every line named.
        modules: `id()` of every module called; the value is its row.
        module_names: Index in `strings` of torch's kind of name, by row.
        storages: (bytes, shape or -1, dtype or -1, whether a tensor shows it, whether it is on the host).
        events: (storage, bytes, below zero for a free, time, operator, call).
        ops: Rows of `Ops`, as lists, since an end is written later.
        calls: Rows of `Calls`, as lists.
        spans: (name, start, end).
        nodes: (time, whether in backward, bits by storage).
        observations: (time, storage, role, name).
        gradients: Storages that were accumulated as a gradient.
        undecided: (row of the event before it, bytes, whether in backward) of what a library may take for itself.
        now_ns: The time of the last row.
    """

    strings: Interned = field(default_factory=Interned)
    shapes: Interned = field(default_factory=Interned)
    frames: Interned = field(default_factory=Interned)
    modules: Interned = field(default_factory=Interned)
    module_names: list[int] = field(default_factory=list)
    storages: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ops: list[list[int]] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    nodes: list[tuple[int, bool, dict[int, int]]] = field(default_factory=list)
    observations: list[tuple[int, int, int, str]] = field(default_factory=list)
    gradients: set[int] = field(default_factory=set)
    undecided: list[tuple[int, int, bool]] = field(default_factory=list)
    now_ns: int = 0

    def tick(self) -> int:
        """The next time."""
        self.now_ns += TICK_NS
        return self.now_ns

    def add_node(self, time_ns: int, *, backward: bool) -> dict[int, int]:
        """Begin a node of the data flow; returns the bits of the storages that it touches."""
        bits: dict[int, int] = {}
        self.nodes.append((time_ns, backward, bits))
        return bits
