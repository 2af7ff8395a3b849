"""The replay in C (`replay.c`): the same answers as `replay.py` gives, twenty times as fast, where a C compiler is.

It is compiled when it is first needed, once, into the user's cache. Without a compiler, or without a cache that only
this user can write, replays run in Python.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL, PoolId
from tracer.allocator.history import FailedRequest, History, Need, Op, Requests
from tracer.arrays import Column, Ints
from tracer.block_sizes import SMALL_BYTES, round_sizes
from tracer.user_cache import build_once, digest_of, how_others_write, user_cache

if TYPE_CHECKING:
    from tracer.allocator.caching_allocator import CachingAllocator
    from tracer.allocator.settings import AllocatorSettings
    from tracer.allocator.start_state import StartState

SOURCE: Final = Path(__file__).with_name("replay.c")
_NAME: Final = "replay.so"
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_WORTH_COMPILING: Final = 20_000
"""Operations of a replay: compiling takes 0.4 s of a processor, once, as ten replays of so many do in Python."""
_WORTH_A_CALL: Final = 2_000
_MOST_BYTES: Final = 1 << 58
"""In all blocks of a recording, so that no sum of them leaves 64 bits."""
_NO_LIMIT: Final = 1 << 61
"""More than all blocks have."""
_COUNTED: Final = {
    "operations": "code",
    "lives": "size",
    "homes": "home_pool",
    "first": "first",
    "failed": "failed_size",
    "spans": "span_size",
}
"""By what C counts, a column that has one number for each."""
_Home = tuple[int, bool, int]  # number of the pool, is small, stream


class ReplayLibrary:
    """`replay.c`, compiled. It names the fields of the structures that it is called with, each of 64 bits."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._replay = library.torch_timeline_replay
        self._replay.restype = ctypes.c_int64
        self._given, self._outcome = (
            ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, f"torch_timeline_{name}"))).decode().split()
            for name in ("given", "outcome")
        )

    def replay(self, given: Mapping[str, int], unserved: Ints) -> dict[str, int] | None:
        """Call it with numbers and addresses of columns, by name; None where it has no answer."""
        fields = (ctypes.c_uint64 * len(self._given))(*(given[name] % 2**64 for name in self._given))
        outcome = (ctypes.c_int64 * len(self._outcome))()
        if not self._replay(fields, ctypes.c_void_p(unserved.ctypes.data), outcome):
            return None
        return dict(zip(self._outcome, outcome, strict=True))


def compiled_replay(
    program: Requests,
    allocator: CachingAllocator,
    *,
    capacity: int | None,
    goes_on: bool,
    top: int,
    start: StartState | None,
    library: ReplayLibrary | None = None,
) -> Need | None:
    """Replay requests in C.

    Args:
        allocator: One that has served nothing yet.
        top: The address below which the driver places segments.
        library: By default the one of the cache, which is compiled if that is worth it.

    Returns:
        None where there is no compiled replay, the program is too short for one, its numbers are too large, or it
        contradicts itself: then Python replays it.
    """
    history, code, operand, settings = program.history, program.code, program.operand, allocator.settings
    library = library or _library_for(len(code))
    if library is None or not _are_within(history, code, operand):
        return None
    columns = _columns(history, settings, start)
    if columns is None or max(allocator.address_space, settings.large_segment_size) > _MOST_BYTES:
        return None
    columns |= {"code": _ints(code), "operand": _ints(operand)}
    given = {
        **_numbers_of_settings(settings, capacity if start is None else None),
        **{f"num_{name}": len(columns[column]) for name, column in _COUNTED.items()},
        **{name: column.ctypes.data for name, column in columns.items()},
        "capacity": -1 if capacity is None else min(max(capacity, 0), _NO_LIMIT),
        "counts_segments": allocator.counts_segments,
        "address_space": allocator.address_space,
        "goes_on": goes_on,
        "top": top,
        "reserved": 0 if start is None else start.reserved_bytes,
        "from_start": start is not None,
    }
    unserved = np.zeros(max(len(history.failed), int((code == Op.OOM).sum())), np.int64)
    outcome = library.replay(given, unserved)
    if outcome is None:
        return None
    entries = program.entry[unserved[: outcome.pop("num_unserved")]]
    has_failed, position, *failed = (outcome.pop(name) for name in _FAILURE)
    failure = FailedRequest(program.entry_at(position), *failed) if has_failed else None
    return Need(failure=failure, unserved=tuple(entries.tolist()), **outcome)


_FAILURE: Final = ("has_failed", "failed_at", "failed_size_bytes", "failed_reserved_bytes", "failed_allocated_bytes")
"""Whether a request failed; then its position, and the other fields of `FailedRequest`."""


def _numbers_of_settings(settings: AllocatorSettings, device_bytes: int | None) -> dict[str, int]:
    fraction, threshold = settings.per_process_memory_fraction, settings.garbage_collection_threshold
    limit = int(fraction * device_bytes) if fraction < 1 and device_bytes is not None else None
    return {
        "memory_limit": -1 if limit is None else limit,
        "garbage_threshold": 0 if limit is None else int(threshold * limit),
        "counts_searches": threshold > 0,
        "max_split": -1 if settings.max_split_size is None else min(settings.max_split_size, _NO_LIMIT),
        "max_non_split_rounding": min(settings.max_non_split_rounding_size, _NO_LIMIT),
        "large_segment_size": settings.large_segment_size,
        "expandable": settings.expandable_segments,
    }


def _columns(history: History, settings: AllocatorSettings, start: StartState | None) -> dict[str, Column[Any]] | None:
    """The columns of a history and of what it began with; None where their sums may leave 64 bits."""
    lives = history.lives
    size = round_sizes(lives.requested_bytes, settings.roundup_power2_divisions)
    failed_size = _ints([wanted for wanted, _ in history.failed])
    if not all(map(_are_small, (lives.requested_bytes, size, failed_size))):
        return None
    homes = _Homes(history, size, start)
    return {
        "size": _ints(size),
        "home": homes.of_life,
        "home_pool": _ints([pool for pool, _, _ in homes.numbers]),
        "home_small": _ints([is_small for _, is_small, _ in homes.numbers]),
        "first": _ints(history.first_lives),
        "waits": np.ascontiguousarray(history.waits_at_start, dtype=np.uint8),
        "is_first": _marked(history.first_lives, len(lives)),
        "failed_size": failed_size,
        "failed_home": _ints(
            [homes.number(DEFAULT_POOL, stream, is_small=wanted <= SMALL_BYTES) for wanted, stream in history.failed]
        ),
        **_span_columns(start, homes),
    }


def _are_small(sizes_bytes: Ints) -> bool:
    return not len(sizes_bytes) or (
        int(sizes_bytes.min()) >= 0 and float(sizes_bytes.sum(dtype=np.float64)) <= _MOST_BYTES
    )


def _are_within(history: History, code: Ints, operand: Ints) -> bool:
    """Whether each operation is about a life, or a failed request, that there is."""
    is_failure = code == Op.OOM
    most = np.where(is_failure, len(history.failed), np.where(code == Op.RELEASE, 1, len(history.lives)))
    return bool(((operand >= 0) & (operand < most)).all())


class _Homes:
    """The lists of free blocks, by number, in the order of pools, halves and streams.

    Attributes:
        numbers: What each is of.
        of_life: That of each life [lives].
    """

    def __init__(self, history: History, size: Ints, start: StartState | None) -> None:
        pools = {DEFAULT_POOL: 0}
        for pool in history.pools:
            pools.setdefault(pool, len(pools))
        for span in () if start is None else start.spans:
            pools.setdefault(span.pool, len(pools))
        self._pools = pools
        streams, stream = np.unique(history.stream, return_inverse=True)
        pool_of = np.array([pools[pool] for pool in history.pools], np.int64)[history.pool]
        key = (stream.reshape(-1) * len(pools) + pool_of) * 2 + (size <= SMALL_BYTES)
        keys, of_key = np.unique(key, return_inverse=True)
        by_key: list[_Home] = [
            (key // 2 % len(pools), bool(key % 2), int(streams[key // 2 // len(pools)])) for key in keys.tolist()
        ]
        found = set(by_key)
        found.update((0, wanted <= SMALL_BYTES, stream) for wanted, stream in history.failed)
        found.update((pools[span.pool], bool(span.is_small), span.stream) for span in (start.spans if start else ()))
        self.numbers = sorted(found)
        self._number = {home: number for number, home in enumerate(self.numbers)}
        numbers = _ints([self._number[home] for home in by_key])
        self.of_life = _ints(numbers[of_key.reshape(-1)])

    def number(self, pool: PoolId, stream: int, *, is_small: bool) -> int:
        return self._number[self._pools[pool], is_small, stream]


def _span_columns(start: StartState | None, homes: _Homes) -> dict[str, Column[Any]]:
    """What was there before, as columns [spans] and [lives of spans]."""
    spans = () if start is None else start.spans
    lives = [life for span in spans for life in span.lives]
    home = [homes.number(span.pool, span.stream, is_small=bool(span.is_small)) for span in spans]
    first: dict[tuple[int, int | None], int] = {}
    ranges = [first.setdefault((home[at], span.base), at) for at, span in enumerate(spans)]
    return {
        "span_address": np.array([span.address for span in spans], np.uint64),
        "span_base": np.array([span.base or 0 for span in spans], np.uint64),
        "span_size": _ints([span.size for span in spans]),
        "span_home": _ints(home),
        "span_expandable": _ints([span.base is not None for span in spans]),
        "span_range": _ints(ranges),
        "span_lives": np.cumsum(_ints([len(span.lives) for span in spans])),
        "span_life": _ints([life for life, _, _ in lives]),
        "span_life_size": _ints([size for _, _, size in lives]),
        "span_life_address": np.array([address for _, address, _ in lives], np.uint64),
    }


def _ints(values: Sequence[int] | Ints) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)


def _marked(rows: Ints, number: int) -> Column[np.uint8]:
    marked = np.zeros(number, np.uint8)
    marked[rows] = 1
    return marked


# The library.


def _library_for(num_operations: int) -> ReplayLibrary | None:
    if num_operations < _WORTH_A_CALL:
        return None
    return load_library(may_compile=num_operations >= _WORTH_COMPILING)


@cache
def load_library(*, may_compile: bool) -> ReplayLibrary | None:
    """The compiled replay of the user's cache; None where there is none and none can be made."""
    if not sys.platform.startswith("linux"):
        return None
    build = user_cache() / "allocator" / f"{SOURCE.stem}-{platform.machine()}-{digest_of(_FLAGS, [SOURCE])}"
    if how_others_write(build, with_contents=True) is not None or not (may_compile or (build / _NAME).is_file()):
        return None
    try:
        return ReplayLibrary(build_once(build, _NAME, _compile, family=SOURCE.stem))
    except (OSError, subprocess.CalledProcessError):
        return None


def _compile(folder: Path) -> None:
    """Compile the library into a folder.

    Raises:
        OSError: There is no compiler, or the folder cannot be written.
        CalledProcessError: The compiler failed.
    """
    command = [os.environ.get("CC") or "cc", *_FLAGS, "-o", str(folder / _NAME), str(SOURCE)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
