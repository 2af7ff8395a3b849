"""Turns the dicts of a snapshot into columns of the standard library, checking the type of every value that is taken.

Two speeds: a list comprehension over a chunk of rows, and, where a chunk resists, row by row with a message that names
the row. Unknown keys are ignored and missing ones tolerated where an older torch did not write them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tracer.errors import SnapshotError
from tracer.snapshot.actions import ACTION_CODES, STATE_CODES, Action, BlockState
from tracer.snapshot.stacks import StackTable, StrangeStackError

Row = dict[str, Any]
Columns = dict[str, "array[int]"]

# Rows of one chunk stay in the processor's cache while several columns are taken from them.
_CHUNK = 1024
_DAMAGED = "The file is damaged, or it is no allocator snapshot."
_MISSING = object()
_INT64_MAX = 2**63 - 1


class Texts:
    """Gives every distinct text a number; -1 stands for no text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": -1}

    def number(self, value: object) -> int:
        """The number of a text; what is neither text nor None is written out, in 200 characters at most."""
        if value is None:
            return -1
        text = value if isinstance(value, str) else _spelled(value)
        return self._numbers.setdefault(text, len(self._numbers) - 1)

    def __iter__(self) -> Iterator[str]:
        """All texts in the order of their numbers."""
        return (text for text, number in self._numbers.items() if number >= 0)


def trace_columns(entries: object, *, device: int, stacks: StackTable, texts: Texts) -> Columns:
    """The entries of one device, in their order.

    Returns:
        `action`, `addr` (an `oom` entry's free bytes on the device), `size`, `stream`, `time_us` (-1 where the
        recording has none) and `stack`; and, only if an entry has one, `category`, `metadata`, `pool` (numbers of
        texts).

    Raises:
        SnapshotError: An entry is not what an allocator writes.
    """
    rows = as_rows(entries, f"The trace of device {device}")
    out: Columns = {"action": array("B"), **{key: array("q") for key in ("addr", "size", "stream", "time_us")}}
    out["stack"] = array("i")
    labels: Columns = {}
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        where = _Where(f"Entry {{}} of device {device}", start)
        for key, column in _entry_chunk(chunk, where).items():
            out[key].extend(column)
        out["stack"].extend(_stack_ids(chunk, stacks, where))
        _extend_labels(labels, chunk, start, texts)
    return {**out, **labels}


def segment_columns(segments: object, *, stacks: StackTable, texts: Texts) -> Columns:
    """Segments and, in the same order, their blocks, as columns named `segment.*` and `block.*`.

    Raises:
        SnapshotError: A segment or block is not what an allocator writes.
    """
    rows = as_rows(segments, "The list of segments")
    where = _Where("Segment {}", 0)
    ints = {
        "address": _ints(rows, "address", where),
        "total_size": _ints(rows, "total_size", where),
        "device": _ints(rows, "device", where, default=0),
    }
    ints["stream"] = _ints(rows, "stream", where, default=0)
    small = array("B", [row.get("segment_type") == "small" for row in rows])
    expandable = array("B", [row.get("is_expandable") is True for row in rows])
    pool = array("i", [_pool(row.get("segment_pool_id"), texts) for row in rows])
    first_block = array("q", [0])
    blocks: list[Row] = []
    addresses = array("q")
    for number, row in enumerate(rows):
        pieces = as_rows(row.get("blocks", []), f"The list of blocks of segment {number}")
        blocks.extend(pieces)
        addresses.extend(
            _block_addresses(pieces, ints["address"][number], _Where(f"Block {{}} of segment {number}", 0))
        )
        first_block.append(len(blocks))
    found = {**ints, "small": small, "expandable": expandable, "pool": pool, "first_block": first_block}
    found["stack"] = _stack_ids(rows, stacks, where)
    named = {f"segment.{key}": column for key, column in found.items()}
    return {**named, **_block_columns(blocks, addresses, stacks)}


def annotation_columns(annotations: object, *, texts: Texts) -> Columns:
    """External annotations (regions of the program) as columns named `annotation.*`; `device` -1 means all devices."""
    rows = as_rows(annotations, "The list of annotations")
    where = _Where("Annotation {}", 0)
    return {
        "annotation.name": array("i", [texts.number(row.get("name")) for row in rows]),
        "annotation.is_start": array("B", [row.get("stage") == "START" for row in rows]),
        "annotation.device": _ints(rows, "device", where, default=-1),
        "annotation.time_us": _ints(rows, "time_us", where, default=-1),
    }


def as_rows(value: object, what: str) -> list[Row]:
    """The value, if it is a list of dicts.

    Raises:
        SnapshotError: It is something else.
    """
    if type(value) is not list:
        raise SnapshotError(f"{what} is of type {type(value).__name__}, not a list.", hint=_DAMAGED)
    if not set(map(type, value)) <= {dict}:
        index, wrong = next((i, row) for i, row in enumerate(value) if type(row) is not dict)
        raise SnapshotError(f"{what} has a {type(wrong).__name__} at position {index}, not a dict.", hint=_DAMAGED)
    return value


class _Where:
    """Names a row for a message, counted from the first row of its chunk."""

    def __init__(self, pattern: str, start: int) -> None:
        self._pattern, self._start = pattern, start

    def refuse(self, index: int, complaint: str) -> NoReturn:
        raise SnapshotError(f"{self._pattern.format(self._start + index)} {complaint}", hint=_DAMAGED)


def _entry_chunk(chunk: list[Row], where: _Where) -> Columns:
    actions = _action_codes(chunk, where)
    out: Columns = {"action": actions}
    try:
        out["addr"] = array("q", [row["addr"] for row in chunk])
    except (KeyError, TypeError, OverflowError):
        # An `oom` entry has no address but says how much the device had free; a `snapshot` entry may have neither.
        out["addr"] = _by_row(chunk, "addr", where, lambda i: _address_default(chunk[i], actions[i]))
    out["size"] = _ints(chunk, "size", where)
    out["stream"] = _ints(chunk, "stream", where, default=0)
    out["time_us"] = _ints(chunk, "time_us", where, default=-1)
    return out


def _address_default(row: Row, action: int) -> object:
    if action == Action.OOM:
        return row.get("device_free", 0)
    return 0 if action in (Action.SNAPSHOT, Action.UNKNOWN) else _MISSING


def _action_codes(chunk: list[Row], where: _Where) -> array[int]:
    try:
        return array("B", [ACTION_CODES[row["action"]] for row in chunk])
    except (KeyError, TypeError):
        out = array("B")
        for index, row in enumerate(chunk):
            action = row.get("action")
            if type(action) is not str:
                where.refuse(index, f"has no action but {_spelled(action)}.")
            out.append(ACTION_CODES.get(action, Action.UNKNOWN))
        return out


def _ints(rows: list[Row], key: str, where: _Where, *, default: int | None = None) -> array[int]:
    """One column of integers; without a default the key must be there. The arrays refuse what is no 64 bit integer."""
    try:
        return array("q", [row[key] for row in rows])
    except (KeyError, TypeError, OverflowError):
        return _by_row(rows, key, where, lambda _: _MISSING if default is None else default)


def _by_row(rows: list[Row], key: str, where: _Where, default: Callable[[int], object]) -> array[int]:
    out = array("q")
    for index, row in enumerate(rows):
        value = row.get(key, _MISSING)
        value = default(index) if value is _MISSING else value
        if value is _MISSING:
            where.refuse(index, f"has no {key}.")
        if type(value) is not int:
            where.refuse(index, f"has a {key} of type {type(value).__name__}.")
        if not -_INT64_MAX <= value <= _INT64_MAX:
            where.refuse(index, f"has a {key} of {_spelled(value)}, which no allocator writes.")
        out.append(value)
    return out


def _stack_ids(rows: list[Row], stacks: StackTable, where: _Where) -> array[int]:
    try:
        return stacks.ids([row.get("frames") for row in rows])
    except StrangeStackError:
        index = next(i for i, row in enumerate(rows) if row.get("frames") and type(row["frames"]) is not list)
        where.refuse(index, f"has frames of type {type(rows[index]['frames']).__name__}, not a list.")


def _extend_labels(labels: Columns, chunk: list[Row], start: int, texts: Texts) -> None:
    """Optional texts: a column appears with the first entry that has one, -1 before it."""
    for name, key in (("category", "category"), ("metadata", "user_metadata"), ("pool", "pool_id")):
        values = [row.get(key) for row in chunk]
        if name not in labels and not any(values):
            continue
        column = labels.setdefault(name, array("i", [-1]) * start)
        number = (lambda value: _pool(value, texts)) if name == "pool" else texts.number
        column.extend(array("i", map(number, values)))


def _pool(value: object, texts: Texts) -> int:
    """The number of a private pool's name; -1 for the default pool (0, 0)."""
    if not isinstance(value, (tuple, list)) or not any(value):
        return -1
    return texts.number(",".join(_spelled(part) for part in value[:2]))


def _block_addresses(blocks: list[Row], segment_address: int, where: _Where) -> array[int]:
    """The blocks' addresses; torch 2.0 and older wrote none, there they follow from the sizes."""
    sizes = _ints(blocks, "size", where)
    if blocks and "address" in blocks[0]:
        return _ints(blocks, "address", where)
    out = array("q")
    for size in sizes:
        out.append(segment_address)
        segment_address = min(segment_address + size, _INT64_MAX)
    return out


def _block_columns(blocks: list[Row], addresses: array[int], stacks: StackTable) -> Columns:
    where = _Where("Block {}", 0)
    states = array("B")
    for index, block in enumerate(blocks):
        state = block.get("state")
        if type(state) is not str or state not in STATE_CODES:
            where.refuse(index, f"is in the unknown state {_spelled(state)}.")
        states.append(STATE_CODES[state])
    history = [_live_history(b, s != BlockState.INACTIVE) for b, s in zip(blocks, states, strict=True)]
    framed = [block if item is None else item for block, item in zip(blocks, history, strict=True)]
    requested = [_requested(block, item) for block, item in zip(blocks, history, strict=True)]
    size = _ints(blocks, "size", where)
    return {
        "block.address": addresses,
        "block.size": size,
        "block.requested_size": _ints(requested, "requested_size", where),
        "block.state": states,
        "block.stack": _stack_ids(framed, stacks, where),
    }


def _live_history(block: Row, is_live: bool) -> Row | None:
    """What torch 2.0 and older say of a live block: the newest item of its history."""
    history = block.get("history")
    if not is_live or type(history) is not list or not history or type(history[0]) is not dict:
        return None
    return history[0]


def _requested(block: Row, history: Row | None) -> Row:
    """The row that knows what was asked for: the block, else its history, else the rounded size has to do."""
    if "requested_size" in block:
        return block
    known = block.get("size") if history is None else history.get("real_size", block.get("size"))
    return {"requested_size": known}


def _spelled(value: object) -> str:
    """A value for a message; nothing in a hostile file may make this expensive or raise."""
    if type(value) is int:
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if type(value) is str:
        return repr(value[:200])
    if type(value) is dict:
        return "; ".join(f"{k[:40]}: {v[:40]}" for k, v in list(value.items())[:5] if type(k) is type(v) is str)
    return f"a {type(value).__name__}"
