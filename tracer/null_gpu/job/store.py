"""A store and lists of objects of torch.distributed as if all ranks had come: they run one after the other."""

from __future__ import annotations

import ctypes
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.distributed_c10d import Store

from tracer.capture.torch_private import torch_distributed
from tracer.errors import TracerError
from tracer.null_gpu.job.place import run_earlier_ranks

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
        """Return the value that was set; for another rank's key, this rank's own value under its number, or zeros."""
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
        """Return True if this rank has set the keys: a signal of another rank never comes."""
        return all(key in self.own for key in keys)

    def delete_key(self, key: str) -> bool:
        """Forget a key."""
        return self.own.pop(key, None) is not None

    def num_keys(self) -> int:
        """Number of keys that this rank has set."""
        return len(self.own)

    def set_timeout(self, timeout: timedelta) -> None:
        """Kept, and without effect."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """The timeout that was set."""
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
        """Return the value that was set; of a counter, its value when all ranks have added as much."""
        value = super().get(key)
        return str(int(value) * self._world_size).encode() if key in self._counted and key in self.own else value

    def check(self, keys: Iterable[str]) -> bool:
        """Return True if the keys are set: another rank's are. A process group also looks for signals of failure."""
        keys = list(keys)
        is_alone = self._world_size == 1 or any(key.startswith(_GROUPS) for key in keys)
        return super().check(keys) if is_alone else True


def _series(key: str) -> str | None:
    """A key without the number of a rank that ends it; None where it ends in none."""
    head, _, number = key.rpartition("/")
    return f"{head}/" if head and number.isdigit() else None


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


_MOST_NUMBERS: Final = 4096
"""Larger tensors of integers are data, not what ranks tell each other."""


def is_of_numbers(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has a few integers, as ranks compare them."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return type(tensor) is torch.Tensor and is_whole and 0 < tensor.numel() <= _MOST_NUMBERS and tensor.is_contiguous()


class Objects:
    """Exchange of this rank with ranks that ran before it: its own objects, and theirs.

    Objects are pickled, as torch itself does between ranks, in a folder that only the job's own processes write to.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._calls: Counter[tuple[object, ...]] = Counter()

    def share(
        self, objects: list[Any], source: int, group: Sequence[int], *, kind: str = "all", are_needed: bool = False
    ) -> None:
        """Fill in objects that the source gave its group at the same call; if it has not run, the list stays as it is.

        Args:
            kind: Of call; each has an order of its own.
            are_needed: Whether this rank has none that would do; the first rank then runs meanwhile, if it can.
        """
        path = self._path(kind, source, min(group), max(group), len(group))
        if are_needed and source < self._rank and not path.exists():
            run_earlier_ranks(self._folder)
        if source == self._rank:
            self._write(path, list(objects))
        elif path.exists():
            objects[:] = self._read(path)[: len(objects)]

    def share_numbers(self, tensor: torch.Tensor, source: int, group: Sequence[int]) -> None:
        """Share a tensor's values: those of the source are copied into it."""
        # Not by an operator, which would be a value that the program has read: the null GPU's memory is the host's.
        held = bytearray(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
        own = torch.frombuffer(held, dtype=tensor.dtype).tolist()
        values = [own]
        self.share(values, source, group, kind="numbers")
        if values[0] != own:
            tensor.copy_(torch.tensor(values[0], dtype=tensor.dtype).view_as(tensor))

    def send(self, objects: list[Any], destination: int) -> None:
        """Leave objects for another rank."""
        self._write(self._path("one", self._rank, destination), list(objects))

    def receive(self, objects: list[Any], source: int) -> None:
        """Take objects that another rank has left for this one, or else what stands for them.

        Where no rank has left any, the first rank runs meanwhile, if the job's command can start it.

        Stages of a pipeline tell the next one the shapes of what they will send, and the one before the shapes of the
        gradients that come back: those of what it has sent. The stages in between say mostly the same, so that the
        words of the nearest earlier rank do where the one before has not run.

        Raises:
            TracerError: No rank before this one has sent any.
        """
        path = self._path("one", source, self._rank)
        if path.exists():
            objects[:] = self._read(path)[: len(objects)]
        elif (gradients := torch_distributed.gradients_of_stage()) is not None:
            objects[:] = [gradients]
        else:
            found = self._nearest()
            if not found and run_earlier_ranks(self._folder):
                found = self._nearest()
            if not found:
                raise TracerError(
                    f"Rank {self._rank} waits for objects of rank {source}, which has not run.",
                    hint=f"Run it before: --rank {source},{self._rank}.",
                )
            objects[:] = found[: len(objects)]

    def _nearest(self) -> list[Any]:
        """Objects that the nearest rank, up to this one, has sent to the next stage; empty if none has."""
        names = sorted(self._folder.glob("one-*.pickle"), key=lambda path: [-int(n) for n in path.stem.split("-")[1:]])
        for path in names:
            objects = self._read(path) if int(path.stem.split("-")[1]) <= self._rank else []
            if objects and not torch_distributed.is_of_gradients(objects[0]):
                return objects
        return []

    def _path(self, kind: str, *ranks: int) -> Path:
        call = (kind, *ranks)
        self._calls[call] += 1
        return self._folder / f"{'-'.join(map(str, call))}-{self._calls[call]}.pickle"

    @staticmethod
    def _write(path: Path, objects: list[Any]) -> None:
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(objects))
        unfinished.replace(path)

    @staticmethod
    def _read(path: Path) -> list[Any]:
        objects: list[Any] = pickle.loads(path.read_bytes())
        return objects
