"""Names in syntax trees of Python."""

from __future__ import annotations

import ast


def dotted_name(node: ast.AST) -> str:
    """Return `self.loss` for a name or an attribute of one; the empty text for all else."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(attributes)]) if isinstance(node, ast.Name) else ""
