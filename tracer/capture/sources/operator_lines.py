"""The line of an operator that makes no call: `a + b`, `x[i]`, from the source of the function that it stands in.

The profiler sees calls with their lines, and operators. For one behind `a + b` it is known which function ran it,
which call came before and which came next in that function, and what it is called. Its source, in the order in which
Python evaluates it, says which expressions can be meant. Where two lines are possible, neither is named.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracer.capture.sources.source_files import file_of_cell, remembered

# Without the underscore that an augmented assignment adds where it writes in place.
_BINARY: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div",),
    ast.FloorDiv: ("floor_divide",),
    ast.Mod: ("remainder",),
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul",),
    ast.BitAnd: ("bitwise_and", "__and__"),
    ast.BitOr: ("bitwise_or", "__or__"),
    ast.BitXor: ("bitwise_xor", "__xor__"),
    ast.LShift: ("bitwise_left_shift", "__lshift__"),
    ast.RShift: ("bitwise_right_shift", "__rshift__"),
}
# Reflected too: `2 < x` is `x > 2`.
_COMPARE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("eq",),
    ast.NotEq: ("ne",),
    ast.Lt: ("lt", "gt"),
    ast.Gt: ("gt", "lt"),
    ast.LtE: ("le", "ge"),
    ast.GtE: ("ge", "le"),
}
_UNARY: dict[type[ast.unaryop], tuple[str, ...]] = {ast.USub: ("neg",), ast.Invert: ("bitwise_not",)}
_ITEM = ("select", "slice", "index", "unsqueeze", "alias", "take")
_WRITTEN = ("copy_", "fill_", "index_put_", "masked_fill_")
# Calls of types are no events of the profiler.
_UNSEEN_CALLS = {
    *("bool", "bytes", "dict", "enumerate", "filter", "float", "frozenset", "int", "list", "map", "object", "range"),
    *("reversed", "set", "slice", "str", "super", "tuple", "type", "zip"),
}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_TRY = ast.Try | ast.TryStar
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Branches = tuple[tuple[int, int, int], ...]
"""Per conditional around a site, from the outermost: its number, the side of the site, and the number of sides."""


@dataclass(frozen=True, slots=True)
class _Site:
    """A call, an operator, or the end of the function."""

    # For a call, the lines that its frame may show; for an operator, the line on which it begins.
    lines: tuple[int, ...]
    names: tuple[str, ...]  # Operators that the expression can become; empty for a call
    branches: Branches  # The sides of the conditionals around it
    loops: tuple[int, ...]  # Numbers of the loops around it, outermost first
    is_single: bool = True  # Whether the expression makes one operator of a name, so that they can be counted
    is_end: bool = False  # Whether it is a return

    @property
    def is_operator(self) -> bool:
        return bool(self.names)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Sites evaluated from a place up to the next call: operators, that call, or the function's end."""

    operators: list[int]
    calls: list[int]
    ends: bool


class FunctionSource:
    """The calls and operators of one function, in the order in which Python evaluates them."""

    def __init__(self, sites: Sequence[_Site]) -> None:
        self._sites = sites
        self._known: dict[tuple[str, int | None, int | None, int], int | None] = {}

    def line_of(self, name: str, *, after: int | None, before: int | None, number: int = 0) -> int | None:
        """The line of an operator.

        Args:
            after: Line of the call before it in the same function; None where there was none yet.
            before: Line of the next call in the same function; None where there was none any more.

        Returns:
            None where the source leaves more than one line possible, or none.
        """
        question = (name, after, before, number)
        if question not in self._known:  # every step asks the same
            self._known[question] = self._line_of(*question)
        return self._known[question]

    def _line_of(self, name: str, after: int | None, before: int | None, number: int) -> int | None:
        plain = name.removeprefix("aten::")
        starts = self._starts(after)
        reached = sorted({at for start in starts for at in self._from(start).operators})
        candidates = [at for at in reached if plain in self._sites[at].names]
        meant = [at for at in candidates if self._leads_to(at, before)] or candidates
        sites = [self._sites[at] for at in meant]
        if len({site.lines for site in sites}) == 1:
            return sites[0].lines[0]
        if number < len(sites) and all(self._is_passed_once(at, start) for at in meant for start in starts):
            return sites[number].lines[0]
        return None

    def _is_passed_once(self, at: int, start: int) -> bool:
        """True if the flow from a call passes an operator exactly once, so that operators can be counted."""
        site = self._sites[at]
        branches, loops = (self._sites[start].branches, self._sites[start].loops) if start >= 0 else ((), ())
        enclosing = branches[: len(site.branches)] == site.branches and loops[: len(site.loops)] == site.loops
        return enclosing and at > start and site.is_single

    def _starts(self, after: int | None) -> list[int]:
        """Positions in the source that the previous call may have been made from."""
        if after is None:
            return [-1]
        calls = [at for at, site in enumerate(self._sites) if not site.is_operator and after in site.lines]
        # A call that nobody wrote, as of `__iter__` in `for row in x`, lies before what comes behind its line.
        later = (at for at, site in enumerate(self._sites) if site.lines and site.lines[0] >= after)
        return calls or [next(later, len(self._sites)) - 1]

    def _from(self, start: int) -> _Flow:
        """Return the flow after a site; the end of a loop's body is followed by its beginning as well."""
        flow = self._forward(start + 1, start)
        for loop in reversed(self._sites[start].loops if start >= 0 else ()):
            first = next(at for at, site in enumerate(self._sites) if loop in site.loops)
            again = self._forward(first, -1, stop=start + 1)
            flow = _Flow(flow.operators + again.operators, flow.calls + again.calls, flow.ends or again.ends)
        return flow

    def _forward(self, first: int, origin: int, *, stop: int | None = None) -> _Flow:
        origins = self._sites[origin].branches if origin >= 0 else ()
        other_side = {(number, side) for number, taken, sides in origins for side in range(sides) if side != taken}
        operators: list[int] = []
        calls: list[int] = []
        ends = False
        blocked: set[Branches] = set()
        for at in range(first, len(self._sites) if stop is None else stop):
            site = self._sites[at]
            if any(branch[:2] in other_side for branch in site.branches):
                continue
            if any(site.branches[:depth] in blocked for depth in range(1, len(site.branches) + 1)):
                continue
            if site.is_operator:
                operators.append(at)
                continue
            if site.is_end:
                ends = True
            else:
                calls.append(at)
            if _block(site.branches, origins, blocked):
                return _Flow(operators, calls, ends)
        return _Flow(operators, calls, stop is None or ends)

    def _leads_to(self, at: int, before: int | None) -> bool:
        """True if the next call can be the one on that line; with None, if the function can end without a call."""
        flow = self._from(at)
        if before is None:
            return flow.ends
        return any(before in self._sites[call].lines for call in flow.calls)


def _block(branches: Branches, origins: Branches, blocked: set[Branches]) -> bool:
    """Note that nothing behind a site on this side is reached; True if nothing at all is reached any more."""
    while origins[: len(branches)] != branches:
        blocked.add(branches)
        number, _, sides = branches[-1]
        outer = branches[:-1]
        if any((*outer, (number, side, sides)) not in blocked for side in range(sides)):
            return False
        branches = outer
    return True


@remembered
def source_text(file: str) -> str:
    """The source of a file as Python's tracebacks have it, "" where there is none any more."""
    return "".join(linecache.getlines(file_of_cell(file)))


@remembered
def function_source(text: str, first_line: int, name: str) -> FunctionSource | None:
    """The source of a function.

    Args:
        first_line: Line of its `def`, or of its first decorator, as code objects have it.

    Returns:
        None if there is no such function, as for comprehensions, or one too deep to be walked.
    """
    for node in _functions(text):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if node.name == name and first_line in (first, node.lineno):
            try:
                return FunctionSource(tuple(_Walk().statements(node.body, (), ())))
            except RecursionError:  # a formula of hundreds of terms, written by a program
                return None
    return None


@remembered
def _functions(text: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


class _Walk:
    def __init__(self) -> None:
        self._number = 0

    def statements(self, nodes: Iterable[ast.AST], branches: Branches, loops: tuple[int, ...]) -> Iterator[_Site]:
        for node in nodes:
            yield from self._node(node, branches, loops)

    def _node(self, node: ast.AST, branches: Branches, loops: tuple[int, ...]) -> Iterator[_Site]:
        if isinstance(node, _SCOPES):
            return
        if isinstance(node, ast.Return | ast.Raise):
            yield from self.statements(_operands(node), branches, loops)
            yield _Site((), (), branches, loops, is_end=True)
            return
        if isinstance(node, ast.With | ast.AsyncWith):
            yield from self.statements([item.context_expr for item in node.items], branches, loops)
            yield _Site((node.lineno,), (), branches, loops)  # __enter__
            yield from self.statements(node.body, branches, loops)
            yield _Site((node.lineno,), (), branches, loops)  # __exit__
            return
        if isinstance(node, _COMPREHENSIONS):
            # A function of its own up to Python 3.11; only what it loops over is evaluated here.
            yield from self._node(node.generators[0].iter, branches, loops)
        elif isinstance(node, ast.If | ast.IfExp | _TRY | ast.Match):
            yield from self._alternatives(node, branches, loops)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            yield from self._loop(node, branches, loops)
        else:
            yield from self.statements(_operands(node), branches, loops)
            yield from _own_sites(node, branches, loops)

    def _alternatives(
        self, node: ast.If | ast.IfExp | ast.Try | ast.TryStar | ast.Match, branches: Branches, loops: tuple[int, ...]
    ) -> Iterator[_Site]:
        self._number += 1
        number = self._number
        always, sides = _sides(node)
        yield from self.statements(always, branches, loops)
        for side, nodes in enumerate(sides):
            yield from self.statements(nodes, (*branches, (number, side, len(sides))), loops)
        if isinstance(node, _TRY):
            yield from self.statements(node.finalbody, branches, loops)

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, branches: Branches, loops: tuple[int, ...]
    ) -> Iterator[_Site]:
        self._number += 1
        within = (*loops, self._number)
        if isinstance(node, ast.While):
            yield from self._node(node.test, branches, within)
        else:
            yield from self._node(node.iter, branches, loops)
        yield from self.statements(node.body, branches, within)
        yield from self.statements(node.orelse, branches, loops)


def _sides(node: ast.If | ast.IfExp | ast.Try | ast.TryStar | ast.Match) -> tuple[list[ast.AST], list[list[ast.AST]]]:
    """Return the parts that are always evaluated, and the sides of which one is."""
    if isinstance(node, ast.If):
        return [node.test], [[*node.body], [*node.orelse]]
    if isinstance(node, ast.IfExp):
        return [node.test], [[node.body], [node.orelse]]
    if isinstance(node, _TRY):
        handled: list[list[ast.AST]] = [[*handler.body] for handler in node.handlers]
        return [*node.body], [[*node.orelse], *handled]
    cases: list[list[ast.AST]] = [[*case.body] for case in node.cases]
    return [node.subject], [*cases, []]


def _operands(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.Assign):
        return [node.value, *node.targets]
    if isinstance(node, ast.AnnAssign):
        return [node.value, node.target] if node.value is not None else []
    return ast.iter_child_nodes(node)


def _own_sites(node: ast.AST, branches: Branches, loops: tuple[int, ...]) -> Iterator[_Site]:
    """The call or operators that a node is, once its operands are evaluated."""
    if isinstance(node, ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id in _UNSEEN_CALLS):
            # Python 3.12 shows the line of the method's name, 3.11 that on which the expression begins.
            lines = {node.lineno, node.func.end_lineno or node.lineno}
            yield _Site(tuple(sorted(lines)), (), branches, loops)
        return
    for names, is_single in _names(node):
        yield _Site((node.lineno,), names, branches, loops, is_single)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the names of the node's operators, with True if each name comes once."""
    if isinstance(node, ast.BinOp):
        # `1 / x` is a reciprocal and, for other numbers than 1, a product.
        inverse = isinstance(node.left, ast.Constant) and isinstance(node.op, ast.Div)
        yield ("reciprocal", "mul") if inverse else _BINARY[type(node.op)], True
    elif isinstance(node, ast.AugAssign):
        plain = _BINARY[type(node.op)]
        yield (*plain, *(f"{name}_" for name in plain), *(f"__i{name[2:]}" for name in plain if name[:2] == "__")), True
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        yield _UNARY[type(node.op)], True
    elif isinstance(node, ast.Compare):
        yield from ((_COMPARE[type(op)], True) for op in node.ops if type(op) in _COMPARE)
    elif isinstance(node, ast.Subscript):
        read, is_single = _item_names(node.slice)
        yield (read if isinstance(node.ctx, ast.Load) else (*read, *_WRITTEN)), is_single


def _item_names(index: ast.expr) -> tuple[tuple[str, ...], bool]:
    if isinstance(index, ast.Slice):
        return ("slice", "alias"), True
    if isinstance(index, ast.Constant) and type(index.value) is int:
        return ("select",), True
    return _ITEM, False
