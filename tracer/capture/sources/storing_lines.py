"""Lines of source that put something into a variable, a container or an attribute, by its name alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_files import remembered
from tracer.capture.sources.source_line import SourceLine

_STORING = frozenset(
    {"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "register_buffer"}
)
_GRAPH = " -> graph of the tensor"
_VARIABLE = re.compile(r"(?:closure|local) variable (\w+) of \w+\(\)")
_NUMBER = re.compile(r"\[-?\d+\]")
_INDEX = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"[^\W\d]\w*")
_PRIVATE = frozenset({"self", "_modules", "_parameters", "_buffers", "closure", "variable", "local", "of"})


def in_graph(path: str) -> tuple[str, bool]:
    """A path as far as the tensor whose graph keeps something, with `[...]` for numbers; and whether there is a graph.

    Args:
        path: As `tracer.capture.objects.holders` writes it.
    """
    before, graph, _ = path.partition(_GRAPH)
    return f"{_NUMBER.sub('[...]', before)}{graph}", bool(graph)


def names_on_the_way(path: str) -> list[str]:
    """Names of variables and attributes on a path: `trainer`, `outputs` of `trainer.outputs[3]`."""
    text = path.partition(_GRAPH)[0]
    if (match := _VARIABLE.search(text)) is not None:
        text = f"{match.group(1)}{text[match.end() :]}"
    return [name for name in _NAME.findall(_INDEX.sub("", text)) if name not in _PRIVATE]


def is_bare_variable(path: str) -> bool:
    """Whether a variable holds something itself, and not what is in it."""
    return path.isidentifier() or bool(_VARIABLE.fullmatch(path.rpartition(" -> ")[2]))


def lines_that_store(name: str, file: str, pattern: re.Pattern[str] | None = None) -> tuple[SourceLine, ...]:
    """Lines of a file that put something other than a constant into a variable or attribute of this name.

    Args:
        pattern: What has to occur in the line; None for anything.
    """
    text = source_text(file)
    numbers = _stores(text).get(name, ())
    if pattern is not None:
        lines = text.splitlines()
        numbers = tuple(line for line in numbers if pattern.search(lines[line - 1]))
    return tuple(SourceLine(file, line) for line in numbers)


def has_keyword(line: SourceLine, keywords: Collection[str]) -> bool:
    """Whether a call at a line is given one of some keywords."""
    try:
        tree = ast.parse(source_text(line.file))
    except (SyntaxError, ValueError):  # a notebook's magic, or no Python at all
        return False
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    at_line = (call for call in calls if call.lineno <= line.line <= (call.end_lineno or call.lineno))
    return any(keyword.arg in keywords for call in at_line for keyword in call.keywords)


def is_updated(name: str, file: str) -> bool:
    """Whether a file changes what has this name in place, as a moving average is: by a method such as `lerp_`."""
    return name in _updated(source_text(file))


@remembered
def _updated(text: str) -> frozenset[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a notebook's magic, or no Python at all
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.Expr | ast.Assign) and any(map(_changes_in_place, ast.walk(node))):
            # What a loop goes through is what its body changes.
            names |= _mentioned(node.iter if isinstance(node, ast.For) else node)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("update"):
            names |= _mentioned(node.value)
    return frozenset(names)


def _changes_in_place(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    name = node.func.attr
    return name.startswith("_foreach_") or (name.endswith("_") and not name.startswith("_"))


def _mentioned(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} | {
        part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)
    }


@remembered
def _stores(text: str) -> dict[str, tuple[int, ...]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a notebook's magic, or no Python at all
        return {}
    lines_of: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        for name in _stored_in(node):
            lines_of.setdefault(name, []).append(getattr(node, "lineno", 0))
    return {name: tuple(sorted(set(lines))) for name, lines in lines_of.items()}


def _stored_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign) and not _is_empty(node.value):
        for target in node.targets:
            yield from _names(target)
    elif (isinstance(node, ast.AnnAssign) and node.value is not None and not _is_empty(node.value)) or isinstance(
        node, ast.AugAssign | ast.NamedExpr
    ):
        yield from _names(node.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STORING:
        yield from _names(node.func.value)


def _is_empty(value: ast.expr) -> bool:
    """Whether there is no tensor in it: a constant, an empty container."""
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and not value.args and not value.keywords and isinstance(value.func, ast.Name)


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _names(element)
    elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):  # `found.get(key).append(x)`
        yield from _names(target.func.value)
