"""The values in device memory: what an operator finds there, what it leaves, and what of it is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracer.null_gpu.values.device_bytes import extent, host_view, is_dense
from tracer.null_gpu.values.draws import Draws
from tracer.null_gpu.values.known_ranges import Known, KnownRanges

SMALL_BYTES = 64 << 10
"""Floats up to this size always have values: computed, or drawn where a kernel would have made them."""
MEDIUM_BYTES = 4 << 20
"""Floats up to this size have values where all that they are computed from has."""
LARGE_BYTES = 64 << 20
"""Integers and booleans up to this size have values."""


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds floats or complex numbers, and no integers or booleans."""
    return tensor.is_floating_point() or tensor.is_complex()


class DeviceValues:
    """Values by address. On the null GPU the bytes are there anyway; this knows which of them mean something."""

    def __init__(self) -> None:
        self.ranges = KnownRanges()
        self.draws = Draws()

    def known(self, tensor: torch.Tensor) -> Known:
        """What is known of a tensor's values."""
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
        """Whether what lies between a tensor's elements, as in a column of a table, is little enough to have values."""
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
