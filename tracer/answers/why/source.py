"""Facts from the program's source, where a recording's file is on this machine; without running or importing it.

The path is a recording's, which anybody may have made: what is no source file of a usual size is not opened.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

from tracer.blocks.from_snapshot.sites import Site
from tracer.capture.sources.syntax import dotted_name
from tracer.snapshot.columns import Frame

_MOST_SOURCE_BYTES: Final = 4 << 20
_LEARNING: Final = ("backward", "manual_backward", "grad")
"""Names of calls that compute gradients: of a tensor, an engine, an accelerator; `torch.autograd.grad`."""
_WITHOUT_GRAD: Final = ("no_grad", "inference_mode")
CREATED: Final = ("zeros", "ones", "full", "empty", "rand", "randn", "new_zeros", "new_empty", "new_full", "new_ones")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def source_at(site: Frame | Site) -> str:
    """A line's text; empty where its file is not here."""
    return linecache.getline(site.file, site.line or 0).strip() if _is_here(site.file) else ""


_BINARY: Final = {
    ast.Mult: "mul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.BitAnd: "bitwise_and",
}
_COMPARED: Final = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}


@cache
def calls_on(site: Site) -> frozenset[str]:
    """Names of what a line calls or takes of torch, and of its operators as torch calls them: `repeat`, `mul`.

    A subscript is `index`; of `x.to(torch.float32)` they are `to` and `float32`.
    """
    if (tree := _tree_of(site.file)) is None:
        return frozenset()
    line, names = site.line or 0, set[str]()
    of_sizes = {part for call in ast.walk(tree) for part in _sizes_of_created(call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if node in of_sizes:
            continue
        if isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.BinOp):
            names.add(_BINARY.get(type(node.op), ""))
        elif isinstance(node, ast.Compare):
            names.update(_COMPARED.get(type(op), "") for op in node.ops)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Name, ast.Attribute)):
            names.add("index")
        elif isinstance(node, ast.Attribute) and dotted_name(node) == f"torch.{node.attr}":
            names.add(node.attr)
    return frozenset(names - {""})


def _sizes_of_created(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the arguments of a call that makes a tensor, with their parts: numbers, as `n * 2` of `zeros(n * 2)`."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(function, ast.Attribute) and function.attr in CREATED:
        for argument in (*node.args, *node.keywords):
            yield from ast.walk(argument)


_NARROW: Final = ("half", "bfloat16", "float16", "float8_e4m3fn", "int8")


def cast_behind(site: Site) -> int:
    """The line at or behind one where what it moves is cast to 16 bits or fewer, in the same function; 0 without one.

    `model.to(device)` moves `model`; `model = model.half()` behind it casts it, as does `model.to(device).half()`.
    """
    line = site.line or 0
    if (tree := _tree_of(site.file)) is None:
        return 0
    calls = [
        node
        for part in _function_around(tree, line)
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    named = {*_NARROW, *_names_of_narrow(tree)}
    at_line = [call for call in calls if call.lineno <= line <= (call.end_lineno or 0)]
    moved = {_receiver(call) for call in at_line}
    before = {id(part) for call in at_line if not _narrows(call, named) for part in ast.walk(call.func)}
    behind = [
        call
        for call in calls
        if (call.end_lineno or 0) >= line
        and _receiver(call) in moved
        and _narrows(call, named)
        and id(call) not in before
    ]
    return min((call.end_lineno or 0 for call in behind), default=0)


def _receiver(call: ast.Call) -> str:
    """The name that a chain of calls begins with: `model` of `model.to(device).half()`."""
    node: ast.expr = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return dotted_name(node)


def _narrows(call: ast.Call, named: Collection[str]) -> bool:
    parts = (part for argument in (*call.args, *(of.value for of in call.keywords)) for part in ast.walk(argument))
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return method in _NARROW or (
        method == "to" and any(dotted_name(part).rpartition(".")[2] in named for part in parts)
    )


def _names_of_narrow(tree: ast.Module) -> Iterator[str]:
    """Variables that a file gives such a type: `dtype` of `device, dtype = "cuda", torch.bfloat16`."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                values = getattr(statement.value, "elts", None) if isinstance(target, ast.Tuple) else [statement.value]
                for name, value in zip(getattr(target, "elts", [target]), values or (), strict=False):
                    if dotted_name(value).rpartition(".")[2] in _NARROW:
                        yield dotted_name(name)


def _is_here(file: str | None) -> TypeGuard[str]:
    try:
        path = Path(file or "")
        return path.suffix == ".py" and path.is_file() and path.stat().st_size <= _MOST_SOURCE_BYTES
    except (OSError, ValueError):
        return False


@cache
def _tree_of(file: str | None) -> ast.Module | None:
    """A file's syntax tree; None where it is not here or cannot be parsed."""
    try:
        return ast.parse(Path(file).read_bytes()) if _is_here(file) else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def class_around(file: str, line: int) -> str:
    """The innermost class that a line is in; empty where there is none, or the file is not here."""
    return next((name for name, first, last in _classes_of(file) if first <= line <= last), "")


@cache
def _classes_of(file: str) -> tuple[tuple[str, int, int], ...]:
    """Name, first and last line of each class of a file, the innermost first."""
    tree = _tree_of(file)
    nodes = ast.walk(tree) if tree is not None else ()
    classes = [(at.name, at.lineno, at.end_lineno or at.lineno) for at in nodes if isinstance(at, ast.ClassDef)]
    return tuple(sorted(classes, key=lambda of: of[2] - of[1]))


def is_in_except(file: str, tried: int, line: int) -> bool:
    """True if a line is in the `except` of a `try` around another line; by their order if there is no source."""
    if (tree := _tree_of(file)) is None:
        return line > tried
    return any(
        _holds(node.body, tried) and any(_holds(handler.body, line) for handler in node.handlers)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
    )


def reaches_backward_behind(site: Site) -> bool:
    """True if a call's value reaches a `backward` or `autograd.grad` after the loop that contains the call.

    Assignments and calls of methods in one function are followed, in the order of the source. In a loop with
    `out = model(x)` and `losses.append(criterion(out, y))`, and `sum(losses).backward()` after it, the first line's
    value does.
    """
    line = site.line or 0
    if (tree := _tree_of(site.file)) is None:
        return False
    body = _function_around(tree, line)
    # The last line of the innermost loop around the line; the line itself where there is none.
    loops = [at for at in _statements(body) if isinstance(at, (ast.For, ast.While)) and _holds(at.body, line)]
    end = max((at.lineno, at.end_lineno or 0) for at in loops)[1] if loops else line
    names: set[str] = set()
    for statement in _statements(body):
        parts = [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr)]
        is_at = any(part.lineno <= line <= (part.end_lineno or part.lineno) for part in parts)
        read = [statement.value] if isinstance(statement, ast.Assign) else parts  # but for what gets a value
        if not (is_at or names & set(_names(read))):
            names.difference_update(_reassigned_names(statement))
            continue
        calls = [call for part in parts for call in ast.walk(part) if isinstance(call, ast.Call)]
        if statement.lineno > end and any(_learns(call, names) for call in calls):
            return True
        names.update(_receivers(statement))
    return False


def is_without_grad(site: Frame | Site) -> bool:
    """True if a line is in a function or block without gradients: `torch.no_grad`, `torch.inference_mode`."""
    line = site.line or 0
    if (tree := _tree_of(site.file)) is None:
        return False
    around = (node for node in ast.walk(tree) if isinstance(node, (*_FUNCTIONS, ast.With)) and _holds(node.body, line))
    said = (at for node in around for at in (node.items if isinstance(node, ast.With) else node.decorator_list))
    parts = (part for at in said for part in ast.walk(at))
    return any(dotted_name(part).rpartition(".")[2] in _WITHOUT_GRAD for part in parts)


def loop_around(file: str, line: int) -> int:
    """The first line of the innermost loop that a line is in, in its own function; 0 where there is none."""
    if (tree := _tree_of(file)) is None:
        return 0
    statements = _statements(_function_around(tree, line))
    loops = (at for at in statements if isinstance(at, (ast.For, ast.While)) and _holds(at.body, line))
    return max((loop.lineno for loop in loops), default=0)


def updates_itself(site: Site) -> bool:
    """True if a line computes a variable's value from its own, as `mean = 0.9 * mean + x.mean()` does.

    Such a variable holds one value, unless a graph holds the earlier ones; a list that is joined to itself holds all.
    """
    line = site.line or 0
    if (tree := _tree_of(site.file)) is None:
        return False
    lines = (at for at in _statements(_function_around(tree, line)) if at.lineno <= line <= (at.end_lineno or 0))
    return any(_reads_own_target(statement) for statement in lines)


def _reads_own_target(statement: ast.stmt) -> bool:
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return False
    if any(isinstance(node, (ast.List, ast.Dict, ast.ListComp, ast.DictComp)) for node in ast.walk(statement)):
        return False
    return isinstance(statement, ast.AugAssign) or bool({*_reassigned_names(statement)} & {*_names([statement.value])})


def _function_around(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The body of the innermost function that a line is in; else the module's."""
    around = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _holds(node.body, line)]
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=tree).body


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """The statements of a body in order, with those inside of loops and blocks, but not of functions and classes."""
    for part in body:
        if isinstance(part, (*_FUNCTIONS, ast.ClassDef, ast.expr)):
            continue
        if isinstance(part, ast.stmt):
            yield part
        yield from _statements([*ast.iter_child_nodes(part)])


def _reassigned_names(statement: ast.stmt) -> Iterator[str]:
    """Names that an assignment gives a whole new value: `out`, and not `out` of `out[0]`."""
    if isinstance(statement, ast.Assign):
        targets = [part for target in statement.targets for part in getattr(target, "elts", [target])]
        yield from map(dotted_name, targets)


def _names(parts: Sequence[ast.expr]) -> Iterator[str]:
    """Names that are read: `self`, `self.loss`."""
    yield from filter(None, (dotted_name(node) for part in parts for node in ast.walk(part)))


def _learns(call: ast.Call, names: set[str]) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in _LEARNING and bool(names & set(_names([call])))


def _receivers(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement gives a value: targets, and what a method such as `append` is called of."""
    match statement:
        case ast.Assign(targets=targets):
            yield from (name for target in targets for name in _bases(target))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            yield from _bases(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver))):
            yield from _bases(receiver)


def _bases(target: ast.expr) -> Iterator[str]:
    """The variables or attributes of a target: `out` of `out["logits"]`, `a` and `b` of `a, b`."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from (name for part in parts for name in _bases(part))
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from _bases(inner)
        case _ if name := dotted_name(target):
            yield name


def _holds(body: Sequence[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)
