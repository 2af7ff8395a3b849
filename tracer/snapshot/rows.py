"""Turns the dicts of a snapshot into columns of the standard library.

Two speeds: a list comprehension over a chunk of rows, and, where a chunk resists, row by row. Unknown keys are ignored
and missing ones tolerated where an older torch did not write them. The type of every value is checked: a file that is
not as torch writes it is refused.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NoReturn

from tracer.errors import SnapshotError
from tracer.snapshot.actions import ACTION_CODES, STATE_CODES, Action
from tracer.snapshot.stacks import NO_CONTEXT, Contexts, StackTable, StrangeStackError
from tracer.snapshot.text import spelled

Row = dict[str, Any]
Columns = dict[str, "array[int]"]

_NEWER: Final = "Take the snapshot with torch 2.1 or newer."
DAMAGED: Final = "The file is damaged, or it is no allocator snapshot."
MISSING: Final = object()
INT64_MAX: Final = 2**63 - 1


class Where:
    """Names a row for a message, counted from the first row of its chunk.

    Args:
        pattern: With `{}` for the row's number.
    """

    def __init__(self, pattern: str, start: int = 0) -> None:
        self._pattern, self._start = pattern, start

    def refuse(self, index: int, complaint: str) -> NoReturn:
        """Refuse the file because of one row."""
        raise SnapshotError(f"{self._pattern.format(self._start + index)} {complaint}", hint=DAMAGED)


def as_rows(value: object, what: str) -> list[Row]:
    """The value, if it is a list of dicts."""
    if type(value) is not list:
        raise SnapshotError(f"{what} is of type {type(value).__name__}, not a list.", hint=DAMAGED)
    if not set(map(type, value)) <= {dict}:
        index, wrong = next((i, row) for i, row in enumerate(value) if type(row) is not dict)
        raise SnapshotError(f"{what} has a {type(wrong).__name__} at position {index}, not a dict.", hint=DAMAGED)
    return value


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
    a = "an" if key.startswith("a") else "a"
    if type(value) is not int:
        where.refuse(index, f"has {a} {key} of type {type(value).__name__}.")
    if not -INT64_MAX <= value <= INT64_MAX:
        where.refuse(index, f"has {a} {key} of {spelled(value)}, which no allocator writes.")
    return value


# Rows of one chunk stay in the processor's cache while several columns are taken from them.
_CHUNK = 1024
# What an entry of an unknown action, or a note, may lack.
_WITHOUT_MEMORY: Final = (Action.SNAPSHOT, Action.UNKNOWN, Action.ANNOTATE)
UNKNOWN_FREE: Final = -1  # Of an `oom` entry that does not say how much the device had free


class Texts:
    """Gives every distinct text a number; -1 stands for no text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": -1}

    def number(self, value: object) -> int:
        """The number of a text; what is neither text nor None is written out, in 200 characters at most."""
        if value is None:
            return -1
        text = value if isinstance(value, str) else spelled(value)
        return self._numbers.setdefault(text, len(self._numbers) - 1)

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in the order of their numbers."""
        return (text for text, number in self._numbers.items() if number >= 0)


def trace_columns(entries: object, *, device: int, stacks: StackTable, texts: Texts) -> Columns:
    """The entries of one device, in their order.

    Returns:
        `action`, `addr` (an `oom` entry's free bytes on the device, or `UNKNOWN_FREE`), `size`, `stream`, `time_us` (-1
        where the recording has none) and `stack`; and, only if an entry has one, `category`, `metadata` and `pool`
        (numbers of texts).
    """
    rows = as_rows(entries, f"The trace of device {device}")
    out: Columns = {"action": array("B"), **{key: array("q") for key in ("addr", "size", "stream", "time_us")}}
    out["stack"] = array("i")
    labels: Columns = {}
    contexts = Contexts()
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        where = Where(f"Entry {{}} of device {device}", start)
        values = _values_by_key(chunk)
        columns = None if values is None else _plain_chunk(values)
        if values is None or columns is None:
            columns = _entry_chunk(chunk, where)
            values = {key: tuple([row.get(key) for row in chunk]) for _, key in _LABELS}
            columns["stack"] = _stack_ids([contexts.stack_of(row) for row in chunk], stacks, where)
        else:
            columns["stack"] = _stack_ids(values["frames"], stacks, where)
        for key, column in columns.items():
            out[key].extend(column)
        _extend_labels(labels, values, start, len(chunk), texts)
    return {**out, **labels}


def segment_columns(segments: object, *, stacks: StackTable, texts: Texts) -> Columns:
    """Segments and, in the same order, their blocks, as columns named `segment.*` and `block.*`."""
    rows = as_rows(segments, "The list of segments")
    where = Where("Segment {}")
    own = {
        "address": ints(rows, "address", where),
        "total_size": ints(rows, "total_size", where),
        "device": ints(rows, "device", where, default=lambda _: 0),
        "stream": ints(rows, "stream", where, default=lambda _: 0),
        "is_small": array("B", [row.get("segment_type") == "small" for row in rows]),
        "is_expandable": array("B", [row.get("is_expandable") is True for row in rows]),
        "pool": array("i", [_pool(row.get("segment_pool_id"), texts) for row in rows]),
    }
    first_block = array("q", [0])
    blocks: list[Row] = []
    addresses = array("q")
    for number, row in enumerate(rows):
        pieces = as_rows(row.get("blocks") or [], f"The list of blocks of segment {number}")
        blocks.extend(pieces)
        if pieces and "address" not in pieces[0]:
            raise SnapshotError(
                f"The blocks of segment {number} have no addresses, as in files of torch 2.0 and older.", hint=_NEWER
            )
        addresses.extend(ints(pieces, "address", Where(f"Block {{}} of segment {number}")))
        first_block.append(len(blocks))
    own |= {"first_block": first_block, "stack": _stack_ids([row.get("frames") for row in rows], stacks, where)}
    named = {f"segment.{key}": column for key, column in own.items()}
    return {**named, **_block_columns(blocks, addresses, stacks)}


def annotation_columns(annotations: object, *, texts: Texts) -> Columns:
    """External annotations (regions of the program) as columns named `annotation.*`; `device` -1 means all devices."""
    rows, where = as_rows(annotations, "The list of annotations"), Where("Annotation {}")
    return {
        "annotation.name": array("i", [texts.number(row.get("name")) for row in rows]),
        "annotation.is_start": array("B", [row.get("stage") == "START" for row in rows]),
        "annotation.device": ints(rows, "device", where, default=lambda _: -1),
        "annotation.time_us": ints(rows, "time_us", where, default=lambda _: -1),
    }


def pinned_columns(segments: object) -> Columns:
    """Sizes of the blocks of pinned host memory that are in use."""
    blocks = [
        block
        for segment in as_rows(segments, "The list of host segments")
        for block in as_rows(segment.get("blocks") or [], "The list of blocks of a host segment")
        if str(block.get("state")).startswith("active")
    ]
    return {"pinned.size": ints(blocks, "size", Where("Host block {}"))}


def _values_by_key(chunk: list[Row]) -> dict[str, tuple[Any, ...]] | None:
    """The values of every key, where all rows have the same ones: each row is then looked at once."""
    keys = tuple(chunk[0])
    if len(keys) < 2 or set(map(len, chunk)) != {len(keys)}:
        return None
    try:
        return dict(zip(keys, zip(*map(itemgetter(*keys), chunk), strict=True), strict=True))
    except KeyError:
        return None


def _plain_chunk(values: dict[str, tuple[Any, ...]]) -> Columns | None:
    """The columns of a chunk in which nothing is missing or odd; None where something is."""
    try:
        columns = {key: array("q", values[key]) for key in ("addr", "size", "stream", "time_us")}
        actions = array("B", map(ACTION_CODES.__getitem__, values["action"]))
        is_in_no_region = set(values.get("compile_context", ())) <= set(NO_CONTEXT)
        frames = values["frames"]
    except (KeyError, TypeError, OverflowError):
        return None
    return {"action": actions, **columns} if Action.OOM not in actions and is_in_no_region and frames else None


def _entry_chunk(chunk: list[Row], where: Where) -> Columns:
    actions = _action_codes(chunk, where)

    def absent(index: int) -> object:
        return 0 if actions[index] in _WITHOUT_MEMORY else MISSING

    # An `oom` entry has no address but says how much the device had free.
    placed = [
        {"addr": row.get("device_free", UNKNOWN_FREE)} if action == Action.OOM else row
        for row, action in zip(chunk, actions, strict=True)
    ]
    return {
        "action": actions,
        "addr": ints(placed, "addr", where, default=absent),
        "size": ints(chunk, "size", where, default=absent),
        "stream": ints(chunk, "stream", where, default=lambda _: 0),
        "time_us": ints(chunk, "time_us", where, default=lambda _: -1),
    }


def _action_codes(chunk: list[Row], where: Where) -> array[int]:
    try:
        return array("B", [ACTION_CODES[row["action"]] for row in chunk])
    except (KeyError, TypeError):
        out = array("B")
        for index, row in enumerate(chunk):
            action = row.get("action")
            if type(action) is not str:
                where.refuse(index, f"has no action but {spelled(action)}.")
            out.append(ACTION_CODES.get(action, Action.UNKNOWN))
        return out


def _stack_ids(frames: Sequence[Any], stacks: StackTable, where: Where) -> array[int]:
    try:
        return stacks.ids(frames)
    except StrangeStackError:
        odd = next(index for index, value in enumerate(frames) if value and type(value) is not list)
        where.refuse(odd, f"has a stack of type {type(frames[odd]).__name__}, not a list.")


_LABELS: Final = (("category", "category"), ("metadata", "user_metadata"), ("pool", "pool_id"))


def _extend_labels(labels: Columns, values: Mapping[str, Sequence[Any]], start: int, count: int, texts: Texts) -> None:
    """Optional texts: a column appears with the first entry that has one, -1 before it.

    Args:
        values: Of the rows of a chunk, by key; without a key that no row has.
    """
    for name, key in _LABELS:
        mine = values.get(key)
        if name not in labels and (mine is None or not any(mine)):
            continue
        column = labels.setdefault(name, array("i", [-1]) * start)
        column.extend(_label_numbers(mine or [None] * count, texts, is_pool=name == "pool"))


def _label_numbers(values: Sequence[Any], texts: Texts, *, is_pool: bool) -> array[int]:
    number = (lambda value: _pool(value, texts)) if is_pool else texts.number
    if set(map(type, values)) <= {str, tuple}:
        try:
            numbers = {value: number(value) for value in dict.fromkeys(values)}
        except TypeError:  # a tuple with a list in it
            pass
        else:
            return array("i", map(numbers.__getitem__, values))
    return array("i", map(number, values))


def _pool(value: object, texts: Texts) -> int:
    """The number of a private pool's name; -1 for the default pool (0, 0)."""
    if not isinstance(value, (tuple, list)) or not any(value):
        return -1
    return texts.number(",".join(spelled(part) for part in value[:2]))


def _block_columns(blocks: list[Row], addresses: array[int], stacks: StackTable) -> Columns:
    where = Where("Block {}")
    sizes = ints(blocks, "size", where)
    return {
        "block.address": addresses,
        "block.size": sizes,
        "block.requested_size": ints(blocks, "requested_size", where, default=sizes.__getitem__),
        "block.state": array("B", [_state(block.get("state"), index, where) for index, block in enumerate(blocks)]),
        "block.stack": _stack_ids([block.get("frames") for block in blocks], stacks, where),
    }


def _state(value: object, index: int, where: Where) -> int:
    known = STATE_CODES.get(value) if type(value) is str else None
    return where.refuse(index, f"is in the unknown state {spelled(value)}.") if known is None else known
