"""A row of a peak, and rows as a tree of modules; no torch is imported, so that reading a snapshot does not wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PeakRow:
    """Equal blocks at the peak. The rows of a report sum to its peak."""

    bytes: int
    count: int
    category: str
    torch_category: str | None
    evidence: str
    phase: str
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
    """Whether code that torch.compile generated allocated it: the operator is then a kernel and a buffer."""
    requested_bytes: int | None = None  # Requested, before rounding; None without the allocator's history
    shape: tuple[int, ...] | None = None
    """Of the first tensor of each block that an operator was given; None where none was."""
    dtype: str | None = None  # Of the same tensor, such as `float32`


NO_MODULE = "(no module)"


def moment_words(phase: str | None, step: str = "") -> str:
    """When a peak was: `in backward of step 3`, `at the start of the recording`; empty where nothing tells."""
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


def module_tree(rows: Iterable[PeakRow]) -> ModuleNode:
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
