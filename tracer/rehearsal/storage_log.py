"""What a rehearsal writes down: storages and their lives, operators, calls, and who read and wrote what.

Lists that grow row by row; `columns` makes arrays of them. Time is a counter: every row gets its own microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.arrays import Interned

NONE = -1
TICK_NS = 1000
READ, WRITTEN, ALLOCATED, FREED = 1, 2, 4, 8


@dataclass(slots=True, eq=False)
class StorageLog:
    """Tables of a rehearsal, one list a table."""

    strings: Interned = field(default_factory=Interned)  # All names, interned
    shapes: Interned = field(default_factory=Interned)  # All sets of input shapes, interned
    # (file, line, function, whether it is the user's) of every line named.
    frames: Interned = field(default_factory=Interned)
    modules: Interned = field(default_factory=Interned)  # `id()` of every module called; the value is its row
    module_names: list[int] = field(default_factory=list)  # Index in `strings` of torch's kind of name, by row
    # (bytes, shape or -1, dtype or -1, whether a tensor shows it, whether it is on the host).
    storages: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)
    # (storage, bytes, below zero for a free, time, operator, call).
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ops: list[list[int]] = field(default_factory=list)  # Rows of `Ops`, as lists, since an end is written later
    calls: list[list[int]] = field(default_factory=list)  # Rows of `Calls`, as lists
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # (name, start, end)
    # (time, whether in backward, bits by storage).
    nodes: list[tuple[int, bool, dict[int, int]]] = field(default_factory=list)
    observations: list[tuple[int, int, int, str]] = field(default_factory=list)  # (time, storage, role, name)
    gradients: set[int] = field(default_factory=set)  # Storages that were accumulated as a gradient
    # (row of the event before it, bytes, whether in backward) of what a library may take for itself.
    undecided: list[tuple[int, int, bool]] = field(default_factory=list)
    now_ns: int = 0  # The time of the last row

    def tick(self) -> int:
        """The next time."""
        self.now_ns += TICK_NS
        return self.now_ns

    def add_node(self, time_ns: int, *, backward: bool) -> dict[int, int]:
        """Begin a node of the data flow; returns the bits of the storages that it touches."""
        bits: dict[int, int] = {}
        self.nodes.append((time_ns, backward, bits))
        return bits
