"""The peak by module, as a tree: what a module holds itself, and together with the modules inside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tracer.analysis.peak_row import PeakRow

NO_MODULE = "(no module)"


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
