"""Takes columns of integers from rows, checking the type of every value that is taken.

What decides the sums, sizes and addresses, must be there and be right, or the file is refused. What only explains,
streams and times, may be odd in single rows: those are read as not known, and a remark says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tracer.errors import SnapshotError
from tracer.snapshot.remarks import Remarks, spelled

Row = dict[str, Any]
Columns = dict[str, "array[int]"]

DAMAGED: Final = "The file is damaged, or it is no allocator snapshot."
MISSING: Final = object()
INT64_MAX: Final = 2**63 - 1


class Where:
    """Names a row for a message, counted from the first row of its chunk.

    Args:
        pattern: With `{}` for the row's number.
    """

    def __init__(self, pattern: str, start: int, remarks: Remarks) -> None:
        self._pattern, self._start, self._remarks = pattern, start, remarks

    def place(self, index: int) -> str:
        """A row in words."""
        return self._pattern.format(self._start + index)

    def refuse(self, index: int, complaint: str) -> NoReturn:
        """Refuse the file because of one row.

        Raises:
            SnapshotError: Always.
        """
        raise SnapshotError(f"{self.place(index)} {complaint}", hint=DAMAGED)

    def remark(self, index: int, what: str, value: object) -> None:
        """Note an oddity of a row."""
        place = self.place(index)
        self._remarks.add(what, place[:1].lower() + place[1:], value)


def as_rows(value: object, what: str, remarks: Remarks) -> list[Row]:
    """The value, if it is a list of dicts; a tuple is one too, and what is None in it is left out.

    Raises:
        SnapshotError: It is something else.
    """
    if type(value) is tuple:
        value = list(value)
    if type(value) is not list:
        raise SnapshotError(f"{what} is of type {type(value).__name__}, not a list.", hint=DAMAGED)
    kinds = set(map(type, value))
    if kinds <= {dict}:
        return value
    if kinds == {dict, type(None)}:
        nothing = [index for index, row in enumerate(value) if row is None]
        remarks.add_many(f"{what} has None among its entries, which is left out", len(nothing), f"at {nothing[0]}")
        return [row for row in value if row is not None]
    index, wrong = next((i, row) for i, row in enumerate(value) if type(row) is not dict)
    raise SnapshotError(f"{what} has a {type(wrong).__name__} at position {index}, not a dict.", hint=DAMAGED)


def ints(
    rows: list[Row], key: str, where: Where, *, default: Callable[[int], object] = lambda _: MISSING
) -> array[int]:
    """A column of integers that must be right; values beyond 64 bits are refused.

    Args:
        default: The value of a row without the key, by its index; `MISSING` where that is an error.
    """
    try:
        return array("q", [row[key] for row in rows])
    except (KeyError, TypeError, OverflowError):
        return array(
            "q", (_strict(row.get(key, MISSING), key, index, where, default) for index, row in enumerate(rows))
        )


def _strict(value: object, key: str, index: int, where: Where, default: Callable[[int], object]) -> int:
    value = default(index) if value is MISSING else value
    if value is MISSING:
        where.refuse(index, f"has no {key}.")
    if type(value) is not int:
        where.refuse(index, f"has a {key} of type {type(value).__name__}.")
    if not -INT64_MAX <= value <= INT64_MAX:
        where.refuse(index, f"has a {key} of {spelled(value)}, which no allocator writes.")
    return value


def lenient_ints(rows: list[Row], key: str, where: Where, what: str, *, unknown: int) -> array[int]:
    """A column of integers from 0 on that may be odd in single rows, and may be missing.

    Args:
        unknown: What stands for a value that is missing or odd.
    """
    try:
        values = array("q", [row[key] for row in rows])
        if min(values, default=0) >= 0:
            return values
    except (KeyError, TypeError, OverflowError):
        pass
    return array("q", (_lenient(row.get(key, MISSING), index, where, what, unknown) for index, row in enumerate(rows)))


def _lenient(value: object, index: int, where: Where, what: str, unknown: int) -> int:
    if value is MISSING:
        return unknown
    if type(value) is int and 0 <= value <= INT64_MAX:
        return value
    where.remark(index, what, value)
    return int(value) if type(value) is float and 0 <= value < 2.0**62 else unknown
