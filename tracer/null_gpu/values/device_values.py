"""The values in device memory: what an operator finds and leaves there, what of it is known, and numbers drawn."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import IntEnum
from functools import cache

import torch

_POOL = 1_048_573
"""Numbers that are drawn once and used again; a prime, so that no row of a tensor repeats the one before it."""
_STEP = 370_261
"""Distance of the next fresh draw from the last: every position is used in turn."""


class Draws:
    """Normal numbers from one pool, by address for memory that is not written, and one after the other."""

    def __init__(self) -> None:
        self._pools: dict[torch.dtype, torch.Tensor] = {}
        self._next = 0

    def at(self, address: int, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers of an unwritten tensor at an address: each depends on its place in memory alone.

        Args:
            tensor: Gives dtype, size and stride. Of the result nothing may be written.
        """
        num_elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        start = address // tensor.element_size() % _POOL
        return self._run(start, num_elements, tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers for a tensor that were not given out before; a single one is positive, as losses and norms are."""
        self._next = (self._next + _STEP) % _POOL
        numbers = self._run(self._next, tensor.numel(), tensor.dtype).view(tensor.size())
        return numbers.abs() if tensor.dim() == 0 and not tensor.is_complex() else numbers

    def _run(self, start: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        pool = self._pool(dtype)
        if start + length <= _POOL:
            return pool[start : start + length]
        whole, rest = divmod(length - (_POOL - start), _POOL)
        return torch.cat([pool[start:], *[pool] * whole, pool[:rest]])

    def _pool(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._pools:
            generator = torch.Generator().manual_seed(0)
            if dtype.is_complex:
                numbers = torch.randn(_POOL, dtype=torch.complex64, generator=generator, device="cpu")
            else:
                numbers = torch.randn(_POOL, generator=generator, device="cpu", dtype=torch.float32)
            self._pools[dtype] = numbers.to(dtype)
        return self._pools[dtype]


def host_generator(device: torch.device, generator: torch.Generator | None) -> torch.Generator:
    """A generator of the host for one random operator, seeded by the state of the device's.

    So the same seed draws the same again, as checkpointing expects, and the program's own generators stay untouched.
    """
    source = generator if generator is not None else torch.cuda.default_generators[device.index or 0]
    seed = (source.initial_seed() * 0x9E3779B97F4A7C15 + source.get_offset() * 0xBF58476D1CE4E5B9) & ((1 << 63) - 1)
    return torch.Generator().manual_seed(seed)


_FIRST = 4096
"""The first page stays out: an address of 0 is no memory."""
_NUM_BYTES = (1 << 47) - 2 * _FIRST
"""Addresses that a process of Linux has; only those of tensors are ever touched."""


@cache
def _all_of_memory(dtype: torch.dtype) -> torch.Tensor:
    # Leaked on purpose, once: a tensor over each tensor's own bytes would make a ctypes type for each size.
    memory = (ctypes.c_byte * _NUM_BYTES).from_address(_FIRST)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU on the very bytes of one of the null GPU: what is written to it is in both."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    at = (tensor.data_ptr() - _FIRST) // tensor.element_size()
    view = _all_of_memory(tensor.dtype).as_strided(tensor.size(), tensor.stride(), at)
    return view.conj() if tensor.is_conj() else view


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """Return True if nothing but a tensor's elements lies between its first and its last byte."""
    start, end = extent(tensor)
    return end - start == tensor.nbytes


class Known(IntEnum):
    """Knowledge of the values in a range of device memory; of two that are combined, the smaller holds."""

    UNKNOWN = 0
    """No kernel wrote them, or one that computes nothing."""
    DRAWN = 1
    """Computed from drawn numbers, or drawn."""
    EXACT = 2
    """Written by the host, or computed from what is exact."""


class KnownRanges:
    """Disjoint ranges of addresses that hold values, in order; all else is `Known.UNKNOWN`."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._known: list[Known] = []

    def __len__(self) -> int:
        return len(self._starts)

    def forget(self, start: int, end: int) -> None:
        """Make a range unknown."""
        first = bisect_right(self._ends, start)
        if first == len(self._starts) or self._starts[first] >= end or start >= end:
            return
        last = bisect_left(self._starts, end)
        rest: list[tuple[int, int, Known]] = []
        if self._starts[first] < start:
            rest.append((self._starts[first], start, self._known[first]))
        if self._ends[last - 1] > end:
            rest.append((end, self._ends[last - 1], self._known[last - 1]))
        self._replace(first, last, rest)

    def note(self, start: int, end: int, known: Known) -> None:
        """Set what is known of a range; neighbours of which the same is known are merged."""
        self.forget(start, end)
        if known == Known.UNKNOWN or start >= end:
            return
        first = last = bisect_left(self._starts, start)
        if first and self._ends[first - 1] == start and self._known[first - 1] == known:
            first -= 1
            start = self._starts[first]
        if last < len(self._starts) and self._starts[last] == end and self._known[last] == known:
            end = self._ends[last]
            last += 1
        self._replace(first, last, [(start, end, known)])

    def known(self, start: int, end: int) -> Known:
        """Knowledge of the whole range, by its worst part; an empty range is exact."""
        lowest = Known.EXACT
        at = bisect_right(self._ends, start)
        while start < end:
            if at == len(self._starts) or self._starts[at] > start:
                return Known.UNKNOWN
            lowest = min(lowest, self._known[at])
            start = self._ends[at]
            at += 1
        return lowest

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are unknown."""
        gaps = []
        at = bisect_right(self._ends, start)
        while start < end:
            begin = min(self._starts[at], end) if at < len(self._starts) else end
            if begin > start:
                gaps.append((start, begin))
            start = self._ends[at] if at < len(self._starts) else end
            at += 1
        return gaps

    def _replace(self, first: int, last: int, by: list[tuple[int, int, Known]]) -> None:
        self._starts[first:last] = [start for start, _, _ in by]
        self._ends[first:last] = [end for _, end, _ in by]
        self._known[first:last] = [known for _, _, known in by]


SMALL_BYTES = 64 << 10
"""Floats up to this size always have values: computed, or drawn where a kernel would have made them."""
MEDIUM_BYTES = 4 << 20
"""Floats up to this size have values where all that they are computed from has."""
LARGE_BYTES = 64 << 20
"""Integers and booleans up to this size have values."""


def is_number(tensor: torch.Tensor) -> bool:
    """Return True if a tensor holds floats or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


class DeviceValues:
    """Values by address. On the null GPU the bytes are there anyway; this knows which of them mean something."""

    def __init__(self) -> None:
        self.ranges = KnownRanges()
        self.draws = Draws()

    def known(self, tensor: torch.Tensor) -> Known:
        """Return how a tensor's values are known."""
        return self.ranges.known(*extent(tensor))

    def forget(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have no values for what a kernel would have written."""
        for tensor in tensors:
            self.ranges.forget(*extent(tensor))

    def read(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Known]:
        """A tensor's values on the host, not to be written to, and what is known of them.

        Small floats that nobody has written are drawn, once; of larger ones each shows the number of its address.
        Integers that nobody has written are zero.
        """
        known = self.known(tensor)
        if known != Known.UNKNOWN or tensor.numel() == 0:
            return host_view(tensor), known
        if tensor.nbytes <= SMALL_BYTES or self._is_partly_known(tensor):
            return self.fill(tensor), Known.UNKNOWN
        if is_number(tensor):
            return self.draws.at(tensor.data_ptr(), tensor), Known.UNKNOWN
        return torch.zeros(tensor.size(), dtype=tensor.dtype, device="cpu"), Known.UNKNOWN

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write drawn numbers, or zeros, where a tensor's memory has no values; what it shows then."""
        start, end = extent(tensor)
        size = tensor.element_size()
        for begin, stop in self.ranges.gaps(start, end):
            first, last = (begin - start) // size, -((start - stop) // size)
            gap = tensor.as_strided((last - first,), (1,), tensor.storage_offset() + first)
            view = host_view(gap)
            view.copy_(self.draws.fresh(gap)) if is_number(gap) else view.zero_()
            self.ranges.note(begin, stop, Known.DRAWN)
        return host_view(tensor)

    def has_room_around(self, tensor: torch.Tensor) -> bool:
        """Return True if the gaps between a tensor's elements, as in a column, are small enough to have values."""
        start, end = extent(tensor)
        return is_dense(tensor) or end - start <= (MEDIUM_BYTES if is_number(tensor) else LARGE_BYTES)

    def write(self, tensor: torch.Tensor, values: torch.Tensor, known: Known) -> None:
        """Store values in a tensor's memory, unless they were computed there, and note how they are known.

        Those have called `fill` before, so that what lies between a tensor's elements has values as well.
        """
        if tensor.numel() == 0:
            return
        start, end = extent(tensor)
        if not self.has_room_around(tensor):
            self.ranges.forget(start, end)
            return
        if not is_dense(tensor):
            self.fill(tensor)
            known = min(known, self.ranges.known(start, end))
        view = host_view(tensor)
        if values.data_ptr() != view.data_ptr():
            view.copy_(values)
        self.ranges.note(start, end, known)

    def draw(self, tensor: torch.Tensor, *, positive: bool = False) -> None:
        """Store drawn numbers in small float tensors, as a kernel would have; others have no values then."""
        if tensor.nbytes <= SMALL_BYTES and is_number(tensor) and tensor.numel():
            numbers = self.draws.fresh(tensor)
            self.write(tensor, numbers.abs() if positive and not tensor.is_complex() else numbers, Known.DRAWN)
        else:
            self.ranges.forget(*extent(tensor))

    def _is_partly_known(self, tensor: torch.Tensor) -> bool:
        start, end = extent(tensor)
        return end - start <= LARGE_BYTES and self.ranges.gaps(start, end) != [(start, end)]
