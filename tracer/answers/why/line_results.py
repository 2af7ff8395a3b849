"""Results of the program's lines: the operator of each line, its operands, and what a second run showed of it.

The operator is known by the C++ frames of a stack, else by torch's own functions in it and the calls in the line's
source. Sizes are those of the line's results, of its operands, and of the largest block that there was as a result was
made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.answers.why.case import Case
from tracer.answers.why.source import CREATED, calls_on, source_at
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_python, is_users, torch_file
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import Operand
from tracer.capture.objects.later_uses import Making, NextUse
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE

_NOT_OF_LINES: Final = (Fact.ENGINE, Fact.BACKWARD_CALL, Fact.OPTIMIZER_STEP)
_LEAST_OF_LINE: Final = 2
"""Per cent: a line with less is not looked at."""
_MOST_RESULTS: Final = 16
"""Number of a line's results that are compared with what there was."""
_LEAST_ALIKE: Final = 10
"""The list of what was joined is as large as the result, but for one in so many."""
_SEVERAL_TIMES: Final = 4
_MUCH_LESS: Final = 8
"""Times by which a result of another operator of the line is smaller where it does not matter."""
DECOMPOSED: Final = ("linalg_svd", "_linalg_svd")
DENSE: Final = ("to_dense", "_to_dense", "todense")
REPEATED: Final = ("repeat", "repeat_interleave", "tile")
COPIED: Final = ("clone", "contiguous", "reshape")
INDEXED: Final = ("index", "index_select", "gather", "take", "take_along_dim")
JOINING: Final = ("cat", "stack", "hstack", "vstack", "concat", "concatenate", "pad_sequence")
CAST: Final = ("to", "_to_copy", "float", "double", "long", "type")
CASTS: Final = ("aten::_to_copy", "aten::to", "aten::float", "aten::double", "aten::long", "aten::type")
RESIZED: Final = ("interpolate", "upsample", "grid_sample", "resize")
SORTED: Final = ("sort", "argsort", "msort")
EXPONENTS: Final = ("softmax", "_softmax", "log_softmax", "_log_softmax", "exp", "logsumexp")
BINARY: Final = (
    "mul",
    "add",
    "sub",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "max",
    "min",
    "bitwise_and",
    "cdist",
    "outer",
)
_OF_FUNCTIONS: Final = ("nn/functional.py", "functional.py", "_tensor.py", "nn/utils/rnn.py")
_NAMES: Final = frozenset(
    {
        "one_hot",
        "svd",
        "embedding",
        "einsum",
        *DECOMPOSED,
        *DENSE,
        *REPEATED,
        *COPIED,
        *INDEXED,
        *JOINING,
        *CAST,
        *RESIZED,
        *SORTED,
        *EXPONENTS,
    }
    | {*BINARY, *CREATED}
)


@dataclass(frozen=True, eq=False)
class LineResults:
    """Results that one line of the program has, in use at the moment or asked for then."""

    site: Site
    source: str  # Text of the line; empty where its file is not here
    operators: frozenset[str]
    held: Ints  # Its blocks in use
    rows: Ints  # All blocks that it makes, at other times too
    asked_bytes: int  # Of the request that failed, where the line made it; else 0
    operands: tuple[Operand, ...]  # Tensors that the line names, where it is the one that failed
    factor: float  # Bytes of its largest result beside the largest block that there was as it was made
    is_saved: bool  # Whether forward saves most of it for backward
    parts: Ints  # Blocks of the list that its largest result is joined of, where it is
    making: Making | None  # What made its largest result, where a second run showed it
    before: tuple[Making, ...]  # All that makes results of that shape at the line
    next_use: NextUse | None  # Of that result, likewise
    stands_out: bool  # Whether that is several times as large as any other line's block

    def makes(self, *names: str) -> bool:
        """True if one of the line's operators has one of these names."""
        return not self.operators.isdisjoint(names)

    @property
    def operands_bytes(self) -> int:
        """Bytes of what the request is made of, or of all that the line names; 0 where they are not known."""
        named_bytes = sum(operand.size_bytes for operand in self.operands)
        if self.making is not None and self.making.inputs and self.making.result.size_bytes == self.asked_bytes:
            is_list = any(operand.count > 1 for operand in self.operands)  # of which the first tensors are known
            given_bytes = sum(each.size_bytes for each in self.making.inputs)
            return max(given_bytes, named_bytes) if is_list else given_bytes
        return named_bytes

    @property
    def largest_factor(self) -> float:
        """Bytes of the request beside its operands, where those are known; else `factor`."""
        if self.asked_bytes and self.operands:
            return self.asked_bytes / self.operands_bytes
        return self.factor


def _parts(case: Case, held: Ints, asked_bytes: int) -> Ints:
    """The blocks of the list that a result is joined of: of one line, several, together as large as the result."""
    result = asked_bytes or int(case.lives.requested_bytes[held].max(initial=0))
    others = np.setdiff1d(case.in_use[~case.stays[case.in_use]], held)
    stacks, count = np.unique(case.stack[others], return_counts=True)
    for stack in stacks[count > 1].tolist():
        mine: Ints = others[case.stack[others] == stack]
        if abs(case.bytes(mine) - result) * _LEAST_ALIKE <= result:
            return mine
    return NOTHING


def is_joined(case: Case, stack: int) -> bool:
    """True if a stack is of an operator that joins tensors."""
    site = case.sites.site(stack)
    return not _operators(case, [stack], site).isdisjoint(JOINING)


def is_list_of_join(case: Case, rows: Ints) -> bool:
    """True if some blocks are the list that the failed request was to join into one tensor."""
    site = _line(case, case.asked_stack) if case.has_failed else None
    if site is None or not _operators(case, [case.asked_stack], site).intersection(JOINING):
        return False
    return abs(case.bytes(rows) - case.asked_bytes) * _LEAST_ALIKE <= case.asked_bytes


def results_of_lines(case: Case) -> Iterator[LineResults]:
    """Lines whose results are much at the moment, the largest first."""
    lives = case.lives
    is_made = has(case.facts, Fact.STACK) & ~has(case.facts, *_NOT_OF_LINES, Fact.WORKSPACE)
    is_made &= ~case.stays & ~case.is_set_up & (lives.begin > BEFORE) & (case.kind != Kind.GRADIENT)
    held = case.in_use[is_made[case.in_use]]
    asked_site = _line(case, case.asked_stack) if case.has_failed and _asks(case) else None
    by_site: dict[Site, list[int]] = {} if asked_site is None else {asked_site: [case.asked_stack]}
    for stack in np.unique(case.stack[is_made]).tolist():
        if (site := _line(case, stack)) is not None:
            by_site.setdefault(site, []).append(stack)
    of_stack = np.bincount(case.stack[held], lives.requested_bytes[held], len(case.stacks) + 1)
    found = []
    for site, stacks in by_site.items():
        asked = case.asked_bytes if site == asked_site else 0
        line_bytes = int(of_stack[stacks].sum()) + asked
        if line_bytes * 100 >= _LEAST_OF_LINE * case.in_use_bytes:
            mine, rows = held[np.isin(case.stack[held], stacks)], np.flatnonzero(is_made & np.isin(case.stack, stacks))
            found.append((line_bytes, site, mine, rows, asked, stacks))
    for _, site, mine, rows, asked, stacks in sorted(found, key=lambda of: -of[0]):
        operators = _operators(case, _weighty(case, rows, stacks, asked), site)
        largest, largest_bytes = _largest(case, mine, asked)
        making = case.followed.making(largest) if case.followed is not None else None
        yield LineResults(
            site=site,
            source=source_at(site),
            operators=operators,
            held=mine,
            rows=rows,
            asked_bytes=asked,
            operands=_operands(case, site) if asked and not _inside(case, case.asked_stack)[1] else (),
            factor=_factor(case, rows, asked),
            is_saved=case.bytes(np.intersect1d(mine, case.saved)) * 2 > case.bytes(mine),
            parts=_parts(case, mine, asked) if not operators.isdisjoint(JOINING) else NOTHING,
            making=making,
            before=case.followed.alike(making) if case.followed is not None and making is not None else (),
            next_use=case.followed.next_use(largest) if case.followed is not None else None,
            stands_out=largest_bytes >= _SEVERAL_TIMES * _largest(case, np.setdiff1d(held, mine), 0)[1],
        )


def _largest(case: Case, rows: Ints, asked_bytes: int) -> tuple[int | None, int]:
    """Return the largest result of a line, None for the failed request's, and its bytes."""
    size = case.lives.requested_bytes[rows]
    most = int(size.max(initial=0))
    return (None, asked_bytes) if asked_bytes >= most else (int(rows[size.argmax()]), most)


def _weighty(case: Case, rows: Ints, stacks: list[int], asked_bytes: int) -> list[int]:
    """The stacks of a line that made, or asked for, a result not much smaller than its largest."""
    size = case.lives.requested_bytes[rows]
    of_stack = {stack: int(size[case.stack[rows] == stack].max(initial=0)) for stack in stacks}
    if asked_bytes:
        of_stack[case.asked_stack] = max(of_stack[case.asked_stack], asked_bytes)
    return [stack for stack, size in of_stack.items() if size * _MUCH_LESS >= max(of_stack.values())]


def _asks(case: Case) -> bool:
    return not has(case.sites.facts, *_NOT_OF_LINES, Fact.MODULE_SETUP)[case.asked_stack]


def _line(case: Case, stack: int) -> Site | None:
    """The line of the program whose own operator a stack is of; None where a module of torch's has called it."""
    site = case.sites.site(stack)
    if site.file is None or not is_users(Frame(site.frame, site.file, site.line or 0)):
        return None
    functions, in_module = _inside(case, stack)
    return None if in_module and _NAMES.isdisjoint(functions) else site


def _operators(case: Case, stacks: list[int], site: Site) -> frozenset[str]:
    """Names of the operators that stacks may be of: by C++ frames, else by torch's functions, else by the source."""
    names = set[str]()
    for stack in stacks:
        functions, in_module = _inside(case, stack)
        operation = case.sites.operation(stack)
        names.update([_without_overload(operation)] if operation else functions)
        if not operation and not functions and not in_module:
            names.update(calls_on(site))
    return frozenset(names)


def _inside(case: Case, stack: int) -> tuple[list[str], bool]:
    """Torch's functions in Python that the program's innermost line has called, and whether a module of torch's has."""
    functions, in_module = [], False
    for frame in case.stacks[stack]:
        file = torch_file(frame) if is_python(frame) else None
        if is_python(frame) and is_users(frame):
            break
        in_module |= file is not None and file.startswith("nn/modules/")
        if file in _OF_FUNCTIONS:
            functions.append(frame.name)
    return functions, in_module


def _without_overload(operation: str) -> str:
    """The name of an operator that rows have: `repeat_interleave` for `repeat_interleave_self_int`."""
    parts = operation.split("_")
    names = ("_".join(parts[:number]) for number in range(len(parts), 0, -1))
    return next((name for name in names if name in _NAMES), operation)


def _operands(case: Case, site: Site) -> tuple[Operand, ...]:
    known = case.objects.operands if case.objects is not None else ()
    return tuple(operand for operand in known if (operand.file, operand.line) == (site.file, site.line))


def _factor(case: Case, rows: Ints, asked_bytes: int) -> float:
    """The bytes of a large result beside those of the largest block in use as it was made: the most of all results."""
    lives, size = case.lives, case.lives.requested_bytes
    rows = rows[lives.begin[rows] <= case.entry]
    largest = max(int(size[rows].max(initial=0)), asked_bytes)
    made = [(asked_bytes, case.in_use)] if asked_bytes == largest else []
    for row in rows[size[rows] * 2 >= largest][-_MOST_RESULTS:].tolist():
        made.append((int(size[row]), np.setdiff1d(lives.alive_after(int(lives.begin[row]) - 1), row)))
    return max((result / max(int(size[before].max(initial=0)), 1) for result, before in made), default=0.0)
