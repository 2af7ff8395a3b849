"""Columns: arrays with one value per row of a table, named after the table. The legend of every shape in brackets.

`PerBlock[Int]` has one integer per block, `PerOp[Bool]` one truth per operator; what an integer means, often a row
number of another table, is said where it stands. Names are for readers: a type checker sees equal arrays.

Of a recording:
    [A] allocations and frees      [K] tensor storages, as torch's profiler tells them apart ("keys")
    [N] data-flow nodes            [X] data-flow edges            [V] versions of keys ("slots")
    [O] operators                  [C] Python's calls             [S] spans
    [F] frames                     [M] modules                    [L] kernels that a device ran
    [H] observations of live tensors         [Z] ends of the storages observed      [W] walks over all that is reachable
Of one device in it:
    [D] events in its allocator's order      [B] blocks      [U] storages whose allocation was not recorded
    [E] rows of torch's timeline
Of its operators:
    [R] invocations in forward     [P] forward passes             [T] tensors saved for backward
Of a page:
    [Y] rows of its timeline
Of a run that is watched:
    [J] rows of its counters, of one step or of several that follow each other
Tables of a snapshot and of the allocator's model are named in words: `[entries]`, `[lives]`, `[stacks]`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np


class HasBytes(Protocol):
    """A row of some blocks."""

    @property
    def bytes(self) -> int:
        """Bytes of the blocks."""

    @property
    def count(self) -> int:
        """Number of the blocks."""


_Sized = TypeVar("_Sized", bound=HasBytes)
_Value = TypeVar("_Value", bound=np.generic)
_Key = TypeVar("_Key", bound=Hashable)
_MOST_CODES = 1 << 62
_NAMES: Mapping[str, Any] = {**vars(np), **({"bool": np.bool_} if "bool" in vars(np) else {})}
"""Names of numpy that its functions look up when they are called."""

Int: TypeAlias = np.int64
Bool: TypeAlias = np.bool_
Float: TypeAlias = np.float64

Column: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[_Value]]
"""Values of no table in particular, or of any."""
Ints: TypeAlias = Column[Int]
Bools: TypeAlias = Column[Bool]
Floats: TypeAlias = Column[Float]
Rows: TypeAlias = Ints
"""Row numbers of a table, as a selection has them."""

PerAllocation: TypeAlias = Column[_Value]
PerKey: TypeAlias = Column[_Value]
PerNode: TypeAlias = Column[_Value]
PerEdge: TypeAlias = Column[_Value]
PerSlot: TypeAlias = Column[_Value]
PerOp: TypeAlias = Column[_Value]
PerCall: TypeAlias = Column[_Value]
PerSpan: TypeAlias = Column[_Value]
PerFrame: TypeAlias = Column[_Value]
PerModule: TypeAlias = Column[_Value]
PerKernel: TypeAlias = Column[_Value]
PerObservation: TypeAlias = Column[_Value]

PerEvent: TypeAlias = Column[_Value]
PerBlock: TypeAlias = Column[_Value]
PerUnrecorded: TypeAlias = Column[_Value]
PerTimelineRow: TypeAlias = Column[_Value]

PerInvocation: TypeAlias = Column[_Value]
PerForwardPass: TypeAlias = Column[_Value]
PerEngineNode: TypeAlias = Column[_Value]
PerSavedTensor: TypeAlias = Column[_Value]

PerPageRow: TypeAlias = Column[_Value]
PerSteps: TypeAlias = Column[_Value]


class Interned(dict[Any, int]):
    """Distinct values, numbered in order of appearance; a subscript gives the number."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


class ColumnTable:
    """A dataclass whose fields are columns of one length."""

    __slots__ = ()
    if TYPE_CHECKING:  # else it would be among the hints of each table's columns
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.names()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {type(self).__name__} differ in length: {lengths}")

    def __len__(self) -> int:
        return len(getattr(self, self.names()[0]))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(field.name for field in fields(cls))

    def take(self, rows: Rows | Bools | slice) -> Self:
        """Return some rows, in their order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.names()})

    def followed_by(self, other: Self) -> Self:
        """Return all rows of this table, then those of another."""
        return replace(self, **{name: np.append(getattr(self, name), getattr(other, name)) for name in self.names()})


def at(column: Column[_Value], rows: Rows, none: int | bool) -> Column[_Value]:
    """Return a column's values at some rows, and `none` where the row is -1."""
    missing = np.full(len(rows), none, column.dtype)
    return np.where(rows >= 0, column[np.maximum(rows, 0)], missing) if len(column) else missing


@dataclass(frozen=True, slots=True, eq=False)
class Grouped(Generic[_Key]):
    """Rows of a table in groups, which are in the order of their first rows."""

    keys: tuple[_Key, ...]  # One of each group
    of_row: Ints  # [rows] The group of each row

    def sums(self, amounts: Column[Any]) -> list[int]:
        """Return the sum of each group's amounts, which are integers or truths [rows]."""
        sums = np.zeros(len(self.keys), np.int64)
        np.add.at(sums, self.of_row, amounts)
        return list(map(int, sums))

    def counts(self) -> list[int]:
        """Return the number of rows of each group."""
        return self.sums(np.ones(len(self.of_row), np.int64))

    def rows(self) -> list[Rows]:
        """Return the rows of each group, in order."""
        order = np.argsort(self.of_row, kind="stable")
        return np.split(order, np.cumsum(self.counts())[:-1]) if len(order) else []


def grouped(columns: Sequence[Column[Any]], key: Callable[..., _Key]) -> Grouped[_Key]:
    """Group the rows whose values have equal keys.

    Args:
        columns: Columns of integers, as long as each other and at least one.
        key: Takes a row's values; called once for each combination that occurs.
    """
    code, num_codes = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        least = int(column.min(initial=0))
        span = int(column.max(initial=0)) - least + 1
        if num_codes * span > _MOST_CODES:
            _, code = np.unique(code, return_inverse=True)
            num_codes = len(code)
        code = code * span + (column.astype(np.int64) - least)
        num_codes *= span
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number: dict[_Key, int] = {}
    group = np.empty(len(first), np.int64)
    values = zip(*(column[first[order]].tolist() for column in columns), strict=True)
    group[order] = [number.setdefault(key(*row), len(number)) for row in values]
    return Grouped(tuple(number), group[code.reshape(-1)])


def totals_by(rows: Iterable[_Sized], key: Callable[[_Sized], _Key]) -> dict[_Key, tuple[int, int]]:
    """Return the bytes and the number of blocks that the rows of each key have, the most bytes first."""
    totals: dict[_Key, tuple[int, int]] = {}
    for row in rows:
        size_bytes, count = totals.get(named := key(row), (0, 0))
        totals[named] = (size_bytes + row.bytes, count + row.count)
    return dict(sorted(totals.items(), key=lambda total: -total[1][0]))


def in_use(amount: Ints, begin: Ints, end: Ints, num_entries: int) -> Ints:
    """Return what is in use at the start and after each entry [entries + 1].

    `begin=3, end=7`: in use after 3, 4, 5 and 6. A begin of -1 is before the first entry; an end of `num_entries` is
    none.
    """
    change = np.zeros(num_entries + 2, np.int64)
    np.add.at(change, begin + 1, amount)
    np.add.at(change, end + 1, -amount)
    return np.asarray(np.cumsum(change)[:-1], np.int64)


@contextmanager
def numpys_own_names() -> Iterator[None]:
    """While active, numpy has its own names back where a program replaced them, as by `numpy.bool = bool`."""
    present, own = vars(np), _NAMES
    # Operators alone: the profiler records each function that is called in a step.
    replaced = {name: present[name] for name in own if name in present and present[name] is not own[name]}
    for name in replaced:
        setattr(np, name, _NAMES[name])
    try:
        yield
    finally:
        for name, value in replaced.items():
            setattr(np, name, value)
