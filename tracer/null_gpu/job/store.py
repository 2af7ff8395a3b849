"""A store of torch.distributed that answers as if all ranks had come: only one of them is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed.distributed_c10d import Store

# NCCL's unique id has so many bytes, and ranks other than the first read one.
_UNKNOWN = bytes(128)
# What torch puts before the keys of process groups.
_GROUPS = "default_pg/"


class LoneStore(Store):
    """Keys that this rank or one before it has set; whatever else is asked for is there at once, as zeros."""

    def __init__(self, left: Callable[[], Mapping[str, bytes]] = dict) -> None:
        """A store of one process.

        Args:
            left: Reads the keys that ranks before this one have left; called where a key is first asked for.
        """
        super().__init__()
        self._left = cache(left)
        self._by_rank: dict[str, bytes] = {}
        self.own: dict[str, bytes] = {}
        self._timeout = timedelta(seconds=300)

    def set(self, key: str, value: Any) -> None:
        """Set a key."""
        self.own[key] = _bytes(value)
        if (series := _series(key)) is not None:
            self._by_rank[series] = self.own[key]

    def get(self, key: str) -> bytes:
        """What was set; where another rank would have set it, what this one set under its own number, or zeros."""
        if key in self.own:
            return self.own[key]
        if key in (before := self._left()):
            return before[key]
        return self._by_rank.get(_series(key) or "", _UNKNOWN)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """`get` of several."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: Any) -> None:
        """Append to what this rank has set."""
        self.own[key] = self.own.get(key, b"") + _bytes(value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; counts of other ranks are not known."""
        count = int(self.own.get(key, b"0")) + amount
        self.own[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key, if its value is the expected one or it has none."""
        if self.own.get(key, _bytes(expected)) == _bytes(expected):
            self.own[key] = _bytes(desired)
        return self.own[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: no other rank is waited for."""

    def check(self, keys: Iterable[str]) -> bool:
        """Whether this rank has set them: a signal of another rank's never comes."""
        return all(key in self.own for key in keys)

    def delete_key(self, key: str) -> bool:
        """Forget a key."""
        return self.own.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many this rank has set."""
        return len(self.own)

    def set_timeout(self, timeout: timedelta) -> None:
        """Kept, and without effect."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """What was set."""
        return self._timeout

    def has_extended_api(self) -> bool:
        """`append`, `multi_get` and `multi_set` are there."""
        return True


class ProgramsStore(LoneStore):
    """A store that the program made by itself, to which all ranks have come: flags are set, and all have counted."""

    def __init__(self, jobs: LoneStore, world_size: int) -> None:
        super().__init__()
        self.own, self._left, self._by_rank = jobs.own, jobs._left, jobs._by_rank
        self._world_size = world_size
        self._counted: set[str] = set()

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; `add(0)` returns what it is when all ranks have added as much."""
        self._counted.add(key)
        count = super().add(key, amount)
        return count if amount else count * self._world_size

    def get(self, key: str) -> bytes:
        """What was set; of a counter, what it is when all ranks have added as much."""
        value = super().get(key)
        return str(int(value) * self._world_size).encode() if key in self._counted and key in self.own else value

    def check(self, keys: Iterable[str]) -> bool:
        """Whether they are set: another rank's are. A process group in it looks for signals of failure, too."""
        keys = list(keys)
        is_alone = self._world_size == 1 or any(key.startswith(_GROUPS) for key in keys)
        return super().check(keys) if is_alone else True


def _series(key: str) -> str | None:
    """A key without the number of a rank that ends it; None where it ends in none."""
    head, _, number = key.rpartition("/")
    return f"{head}/" if head and number.isdigit() else None


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
