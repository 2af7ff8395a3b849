"""The replay in C (`replay.c`): the same answers as `replay.py` gives, twenty times as fast, where a C compiler is.

It is compiled when it is first needed, once, into the user's cache. Without a compiler, or without a cache that only
this user can write, replays run in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL, PoolId
from tracer.allocator.history import History, Op
from tracer.arrays import Column, Ints
from tracer.block_sizes import SMALL_BYTES, round_sizes

if TYPE_CHECKING:
    from tracer.allocator.settings import AllocatorSettings
    from tracer.allocator.start_state import StartState

SOURCE: Final = Path(__file__).with_name("replay.c")
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_WORTH_COMPILING: Final = 20_000
"""Operations of a replay: compiling takes 0.4 s of a processor, once, as ten replays of so many do in Python."""
_WORTH_A_CALL: Final = 2_000
_MOST_BYTES: Final = 1 << 58
"""In all blocks of a recording, so that no sum of them leaves 64 bits."""
_NO_LIMIT: Final = 1 << 61
"""More than all blocks have."""
_SERVED, _FAILED, _CONTRADICTION, _NO_MEMORY = range(4)
_Home = tuple[int, bool, int]  # number of the pool, is small, stream


class _Given(ctypes.Structure):
    """`struct given`."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "capacity",
                "memory_limit",
                "garbage_threshold",
                "counts_searches",
                "max_split",
                "max_non_split_rounding",
                "large_segment_size",
                "expandable",
                "counts_segments",
                "address_space",
                "goes_on",
            )
        ),
        ("top", ctypes.c_uint64),
        *(
            (name, ctypes.c_int64)
            for name in (
                "reserved",
                "num_operations",
                "num_lives",
                "num_homes",
                "num_first",
                "num_failed",
                "num_spans",
                "from_start",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "code",
                "operand",
                "size",
                "home",
                "home_pool",
                "home_small",
                "home_stream",
                "first",
                "waits",
                "is_first",
                "failed_size",
                "failed_home",
                "span_address",
                "span_base",
                "span_size",
                "span_home",
                "span_expandable",
                "span_range",
                "span_lives",
                "span_life",
                "span_life_size",
                "span_life_address",
            )
        ),
    )


class _Outcome(ctypes.Structure):
    """`struct outcome`."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "reserved_peak_bytes",
            "allocated_peak_bytes",
            "num_driver_calls",
            "num_retries",
            "wanted_bytes",
            "num_unserved",
            "failed_at",
            "failed_size",
            "failed_reserved",
            "failed_allocated",
        )
    )


class CompiledOutcome:
    """What came of a replay.

    Attributes:
        failed: Position of the operation that failed (-1 for a block that was there at the start), its rounded
            request, and the bytes reserved and allocated then; None where none did.
        unserved: Positions of failed requests of the recording that were not served either.
    """

    def __init__(self, outcome: _Outcome, unserved: Ints, *, has_failed: bool) -> None:
        self.reserved_peak_bytes: int = outcome.reserved_peak_bytes
        self.allocated_peak_bytes: int = outcome.allocated_peak_bytes
        self.num_driver_calls: int = outcome.num_driver_calls
        self.num_retries: int = outcome.num_retries
        self.wanted_bytes: int = outcome.wanted_bytes
        self.unserved: list[int] = unserved[: outcome.num_unserved].tolist()
        failed = (outcome.failed_at, outcome.failed_size, outcome.failed_reserved, outcome.failed_allocated)
        self.failed: tuple[int, int, int, int] | None = failed if has_failed else None


def compiled_replay(
    history: History,
    code: Ints,
    operand: Ints,
    settings: AllocatorSettings,
    *,
    capacity: int | None,
    device_bytes: int | None,
    address_space: int,
    counts_segments: bool,
    goes_on: bool,
    top: int,
    start: StartState | None,
    library: ctypes.CDLL | None = None,
) -> CompiledOutcome | None:
    """Replay the operations of a history in C.

    Args:
        code: Codes of `Op` [operations].
        operand: What each operation is about [operations].
        device_bytes: What a memory fraction is of.
        top: The address below which the driver places segments.
        library: By default the one of the cache, which is compiled if that is worth it.

    Returns:
        None where there is no compiled replay, the program is too short for one, or its numbers are too large: then
        Python replays it.
    """
    if library is None:
        library = _library_for(len(code))
    if library is None:
        return None
    lives = history.lives
    size = round_sizes(lives.requested_bytes, settings.roundup_power2_divisions)
    if len(size) and (int(lives.requested_bytes.min()) < 0 or float(size.sum(dtype=np.float64)) > _MOST_BYTES):
        return None
    homes = _Homes(history, size, start)
    failed_size = _ints([wanted for wanted, _ in history.failed])
    if len(failed_size) and float(np.abs(failed_size).max()) > _MOST_BYTES:
        return None
    if (
        not _are_within(history, code, operand)
        or address_space > _MOST_BYTES
        or settings.large_segment_size > _MOST_BYTES
    ):
        return None
    fraction, threshold = settings.per_process_memory_fraction, settings.garbage_collection_threshold
    limit = int(fraction * device_bytes) if fraction < 1 and device_bytes is not None else None
    columns: dict[str, Column[Any]] = {
        "code": _ints(code),
        "operand": _ints(operand),
        "size": _ints(size),
        "home": homes.of_life,
        "home_pool": _ints([pool for pool, _, _ in homes.numbers]),
        "home_small": _ints([is_small for _, is_small, _ in homes.numbers]),
        "home_stream": _ints([stream for _, _, stream in homes.numbers]),
        "first": _ints(history.first_lives),
        "waits": np.ascontiguousarray(history.waits_at_start, dtype=np.uint8),
        "is_first": _marked(history.first_lives, len(lives)),
        "failed_size": failed_size,
        "failed_home": _ints(
            [homes.number(DEFAULT_POOL, stream, is_small=wanted <= SMALL_BYTES) for wanted, stream in history.failed]
        ),
        **_span_columns(start, homes),
    }
    given = _Given(
        capacity=-1 if capacity is None else min(max(capacity, 0), _NO_LIMIT),
        memory_limit=-1 if limit is None else limit,
        garbage_threshold=0 if limit is None else int(threshold * limit),
        counts_searches=threshold > 0,
        max_split=-1 if settings.max_split_size is None else min(settings.max_split_size, _NO_LIMIT),
        max_non_split_rounding=min(settings.max_non_split_rounding_size, _NO_LIMIT),
        large_segment_size=settings.large_segment_size,
        expandable=settings.expandable_segments,
        counts_segments=counts_segments,
        address_space=address_space,
        goes_on=goes_on,
        top=top,
        reserved=0 if start is None else start.reserved_bytes,
        num_operations=len(code),
        num_lives=len(lives),
        num_homes=len(homes.numbers),
        num_first=len(columns["first"]),
        num_failed=len(failed_size),
        num_spans=len(columns["span_size"]),
        from_start=start is not None,
        **{name: column.ctypes.data for name, column in columns.items()},
    )
    outcome, unserved = _Outcome(), np.zeros(max(len(failed_size), int((code == Op.OOM).sum())), np.int64)
    ended = library.torch_timeline_replay(
        ctypes.byref(given), ctypes.c_void_p(unserved.ctypes.data), ctypes.byref(outcome)
    )
    if ended not in (_SERVED, _FAILED):  # a history that contradicts itself: Python says where
        return None
    return CompiledOutcome(outcome, unserved, has_failed=ended == _FAILED)


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


def _library_for(num_operations: int) -> ctypes.CDLL | None:
    if num_operations < _WORTH_A_CALL:
        return None
    return load_library(may_compile=num_operations >= _WORTH_COMPILING)


@cache
def load_library(*, may_compile: bool) -> ctypes.CDLL | None:
    """The compiled replay of the user's cache; None where there is none and none can be made."""
    if not sys.platform.startswith("linux"):
        return None
    path = _cached_library()
    if path is None or not (path.is_file() or (may_compile and _compile(path))):
        return None
    library = ctypes.CDLL(str(path))
    library.torch_timeline_replay.restype = ctypes.c_int64
    return library


def _cached_library() -> Path | None:
    """Where the library is or would be; None where others can write there."""
    from tracer.null_gpu.private_folders import how_others_write

    digest = hashlib.sha256(" ".join([*_FLAGS, platform.machine()]).encode() + SOURCE.read_bytes()).hexdigest()[:12]
    # pathlib's `expanduser` raises where a user has no home.
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    path = cache_home / "torch-timeline" / "allocator" / f"replay-{platform.machine()}-{digest}.so"
    return path if path.is_absolute() and how_others_write(path) is None else None


def _compile(path: Path) -> bool:
    """Compile beside, then rename; False where there is no compiler, or the cache cannot be written."""
    from tracer.null_gpu.private_folders import make_private

    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return False
    try:
        make_private(path.parent)
        with tempfile.TemporaryDirectory(prefix=".replay-", dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *_FLAGS, "-o", str(made), str(SOURCE)]
            if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
                return False
            made.chmod(0o700)
            made.replace(path)
            for older in path.parent.glob(f"replay-{platform.machine()}-*.so"):
                if older != path:
                    older.unlink(missing_ok=True)
    except OSError:
        return False
    return True
