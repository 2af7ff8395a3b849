"""A script's largest batches: its DataLoader is read ahead, and the steps get the largest of what it gave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from tracer.nested import leaves
from tracer.results.prediction import BatchesRead, ReadBatch

_MOST_KEPT = 4
_OBJECT_DEPTH = 4


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch with the shapes of its tensors, by their place in it."""

    index: int
    batch: Any
    tensors: tuple[tuple[str, torch.Size, torch.dtype], ...]

    @property
    def bytes(self) -> int:
        return sum(shape.numel() * dtype.itemsize for _, shape, dtype in self.tensors)

    @property
    def longest(self) -> int:
        """The longest dimension behind the first, such as tokens: attention needs its square."""
        return max((size for _, shape, _ in self.tensors for size in shape[1:]), default=0)

    def covers(self, other: _Seen) -> bool:
        """Whether no tensor of another batch is larger in any dimension."""
        pairs = list(zip(self.tensors, other.tensors, strict=False))
        return len(self.tensors) == len(other.tensors) and all(
            name == its_name and len(shape) == len(its_shape) and all(map(int.__ge__, shape, its_shape))
            for (name, shape, _), (its_name, its_shape, _) in pairs
        )


class LargestBatches:
    """While active, each DataLoader of torch's is read ahead when it is iterated, and then gives its largest batches.

    Batches of which none is at least as large in every dimension are all given: the one of most bytes first, so that an
    optimizer has its state, then each other, then the first again to the end.
    """

    def __init__(self, num_batches: int) -> None:
        """Read so many batches of each loader, or all that it has."""
        self._num_batches = num_batches
        self._read: dict[int, tuple[Any, int, list[_Seen]]] = {}  # By `id()` of the loader, which is kept
        self._last: int | None = None

    @property
    def read(self) -> BatchesRead:
        """Batches read from the loader that gave the last batch."""
        if self._last is None:
            return BatchesRead(0, ())
        _, number, largest = self._read[self._last]
        return BatchesRead(number, tuple(ReadBatch(seen.index, _words(seen)) for seen in largest))

    def __enter__(self) -> Self:
        self._iterate: Callable[[Any], Iterator[Any]] = DataLoader.__iter__

        def iterate(loader: Any) -> Iterator[Any]:
            return self._given(loader)

        DataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        DataLoader.__iter__ = self._iterate  # type: ignore[method-assign, assignment]

    def _given(self, loader: Any) -> Iterator[Any]:
        if id(loader) not in self._read:
            number, largest = _largest(islice(self._iterate(loader), self._num_batches))
            self._read[id(loader)] = loader, number, largest
        _, number, largest = self._read[id(loader)]
        for position in range(number):
            self._last = id(loader)
            yield _copied(largest[position if position < len(largest) else 0].batch)


def _largest(batches: Iterable[Any]) -> tuple[int, list[_Seen]]:
    """The number of batches, and the largest of them, that of most bytes first."""
    kept: list[_Seen] = []
    number = 0
    for index, batch in enumerate(batches):
        number += 1
        seen = _Seen(index, batch, tuple(_tensors(batch)))
        if any(other.covers(seen) for other in kept):
            continue
        kept = [other for other in kept if not seen.covers(other)]
        kept.append(seen)
        if len(kept) > _MOST_KEPT:
            kept.remove(min(kept, key=lambda one: (one is _most(kept) or one is _longest(kept), one.bytes)))
    return number, sorted(kept, key=lambda seen: -seen.bytes)


def _most(kept: list[_Seen]) -> _Seen:
    return max(kept, key=lambda seen: seen.bytes)


def _longest(kept: list[_Seen]) -> _Seen:
    return max(kept, key=lambda seen: (seen.longest, seen.bytes))


def _tensors(batch: Any) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
    """Names, shapes and types of the tensors in a batch; the name of `batch["pair"][0]` is `pair.0`."""
    for path, tensor in leaves(batch, torch.Tensor, object_depth=_OBJECT_DEPTH):
        yield path.replace("[", ".").replace("]", "").lstrip("."), tensor.shape, tensor.dtype


def _copied(batch: Any) -> Any:
    """Return a copy, because a script may change its batch; the batch itself if it cannot be copied."""
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError):
        return batch


def _words(seen: _Seen) -> tuple[str, ...]:
    """As in `input_ids [8, 512] int64`."""
    return tuple(
        f"{name} {list(shape)} {str(dtype).removeprefix('torch.')}".lstrip() for name, shape, dtype in seen.tensors
    )
