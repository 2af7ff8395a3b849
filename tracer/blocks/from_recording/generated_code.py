"""Generated code read as text: which buffer a line makes, what it becomes by reuse, which kernel writes it.

Nothing is executed. Inductor's code is a function of single statements: `buf0 = empty_strided_cpu(...)`, a kernel that
is given `buf0`, `buf1 = buf0; del buf0  # reuse`, and one `return`. What the backend aot_eager runs has the same form.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tracer.capture.sources.source_files import remembered

END = 1 << 40  # A line behind every function's last: all of it has run
# They check or look at memory, and compute nothing.
_NO_KERNELS = ("assert_", "reinterpret_tensor", "check_", "del ", "print", "get_raw_stream", "start_graph", "end_graph")
_ALLOCATES = ("empty_strided", "empty", "new_empty", "alloc_from_pool", "rand_strided")
_SAME_STORAGE = ("reinterpret_tensor", "as_strided", "alias", "view")
# Operators that never copy; `reshape` may.
_VIEWS = {
    *("alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split", "squeeze", "t"),
    *("transpose", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real"),
}


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement: the name that it assigns, and what that name is."""

    first_line: int
    last_line: int
    target: str | None
    same_as: str | None  # The name whose storage the target shows, where the statement makes nothing new
    is_reuse: bool  # Whether that name goes, and the target takes its storage over
    item_of: str | None  # The name of several things of which the target is one
    callee: str | None
    arguments: tuple[str, ...]

    @property
    def is_kernel(self) -> bool:
        """True if the call computes something."""
        if self.callee is None or self.same_as is not None or self.callee.startswith(_NO_KERNELS):
            return False
        return not self.callee.rpartition(".")[2].startswith(_ALLOCATES)


@dataclass(frozen=True, slots=True)
class Function:
    """A generated function."""

    first_line: int  # Line of its `def`
    last_line: int
    statements: tuple[_Statement, ...]  # Statements in order, those inside of `with` blocks too
    returned: tuple[str, ...]  # The name behind each thing that it returns, in order; "" for a constant
    parameters: tuple[str, ...]  # Names that it takes its arguments apart into

    def made_at(self, line: int) -> str | None:
        """The name of what is made at a line: what it assigns, or what its kernel writes last."""
        for statement in self.statements:
            if statement.first_line <= line <= statement.last_line:
                if statement.target is not None and statement.same_as is None:
                    return statement.target
                if statement.is_kernel and statement.arguments:
                    return statement.arguments[-1]
        return None

    def is_scratch(self, line: int) -> bool:
        """Return True if a kernel that is given its outputs runs at a line: what is made there is scratch memory."""
        return any(
            statement.target is None and statement.is_kernel
            for statement in self.statements
            if statement.first_line <= line <= statement.last_line
        )

    def holds(self, name: str, line: int, *, is_written: bool = False) -> str:
        """Return the meaning of a name's storage once a line has run: a reuse gives it another one.

        A name that nothing was written to is only a stop on the way to the next one; what is given is written already.

        Args:
            is_written: Whether something has been written to the name already, as to an argument.
        """
        for statement in self.statements:
            if statement.same_as == name and statement.target is not None:
                if statement.is_reuse and (statement.first_line <= line or not is_written):
                    name, is_written = statement.target, False
            elif statement.is_kernel and (statement.target == name or name in statement.arguments):
                is_written = True
        return name

    def made_from(self, name: str) -> tuple[str, ...]:
        """Return the buffers that kernels make from a buffer, behind the kernel that writes it, in order."""
        users = [
            statement
            for statement in self.statements
            if statement.is_kernel and (name in statement.arguments or statement.target == name)
        ]
        return tuple(user.target or user.arguments[-1] for user in users[1:])

    def items_of(self, name: str) -> tuple[str, ...]:
        """The names that are given to the parts of a result of several."""
        return tuple(
            statement.target
            for statement in self.statements
            if statement.item_of == name and statement.target is not None
        )

    def shown_by(self, name: str) -> set[str]:
        """Every name that shows a name's storage, or part of it, by the end: views too, that take nothing over."""
        shown = {name}
        for statement in self.statements:
            if statement.target is not None and statement.same_as in shown and not statement.is_reuse:
                shown.add(statement.target)
        return shown

    def kernel_of(self, name: str) -> str | None:
        """The kernel that writes a buffer: the first one that is given it, or the call that returns it."""
        for statement in self.statements:
            if statement.is_kernel and (statement.target == name or name in statement.arguments):
                return statement.callee
        return None


@remembered
def functions_of(text: str) -> tuple[Function, ...]:
    """The functions of a generated file, in order; none if it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    definitions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return tuple(_function(node) for node in sorted(definitions, key=lambda node: node.lineno))


def function_at(functions: tuple[Function, ...], line: int) -> Function | None:
    """The innermost function that a line is in."""
    inside = [function for function in functions if function.first_line <= line <= function.last_line]
    return inside[-1] if inside else None


def _function(node: ast.FunctionDef) -> Function:
    statements: list[_Statement] = []
    returned: tuple[str, ...] = ()
    parameters = tuple(argument.arg for argument in node.args.args if argument.arg != "self")
    body = list(_flat(node.body))
    deletes = [(node_.lineno, target) for node_ in body if isinstance(node_, ast.Delete) for target in node_.targets]
    deleted = {(line, target.id) for line, target in deletes if isinstance(target, ast.Name)}
    for statement in body:
        if isinstance(statement, ast.Return):
            value = statement.value
            elements = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] if value is not None else []
            returned = tuple(_base(element) or "" for element in elements)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple | ast.List):
                parameters = (*parameters, *(_base(element) or "" for element in statement.targets[0].elts))
            elif (read := _statement(statement, deleted)) is not None:
                statements.append(read)
    return Function(node.lineno, node.end_lineno or node.lineno, tuple(statements), returned, parameters)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from _flat(getattr(statement, block, []))


def _statement(node: ast.Assign | ast.AnnAssign | ast.Expr, deleted: set[tuple[int, str]]) -> _Statement | None:
    target = None
    if not isinstance(node, ast.Expr):
        where = node.targets[0] if isinstance(node, ast.Assign) else node.target
        target = where.id if isinstance(where, ast.Name) else None
    value = node.value
    is_nothing = value is None or isinstance(value, ast.Constant)
    if is_nothing or (target is None and not isinstance(value, ast.Call)):
        return None
    callee: str | None = None
    same_as: str | None = None
    item_of: str | None = None
    arguments: tuple[str, ...] = ()
    if isinstance(value, ast.Call):
        callee = ast.unparse(value.func).removesuffix(".run").removesuffix(".default")
        values = [*value.args, *(keyword.value for keyword in value.keywords if keyword.arg != "stream")]
        arguments = tuple(base for argument in values for base in _bases(argument))
        if isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_") and _base(value.func):
            callee, arguments = value.func.attr, (*arguments, _base(value.func) or "")
        elif arguments and _is_view(callee):
            same_as = arguments[0]
    elif isinstance(value, ast.Name):
        same_as = value.id
    elif isinstance(value, ast.Subscript):
        item_of = _base(value)
    return _Statement(
        node.lineno,
        node.end_lineno or node.lineno,
        target,
        same_as,
        (node.lineno, same_as) in deleted,
        item_of,
        callee,
        arguments,
    )


def _is_view(callee: str) -> bool:
    parts = callee.split(".")
    return (
        parts[2:3] == ["aten"] and parts[3] in _VIEWS if callee.startswith("torch.ops.") else parts[-1] in _SAME_STORAGE
    )


def _bases(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.List | ast.Tuple):
        for element in value.elts:
            yield from _bases(element)
    elif (base := _base(value)) is not None:
        yield base


def _base(value: ast.expr) -> str | None:
    """The name whose storage an expression shows: of `reinterpret_tensor(buf0, ...)` that is buf0."""
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Call):
        return _base(value.args[0]) if value.args else None
    return _base(value.value) if isinstance(value, ast.Attribute | ast.Subscript) else None
