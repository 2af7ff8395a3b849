"""The device's driver as the allocator sees it: the interface, and a model of CUDA's."""

from __future__ import annotations

from typing import Protocol

from tracer.allocator.blocks import PoolId
from tracer.allocator.ranges import Ranges
from tracer.units import MIB

_CHUNK = 32 * MIB
ABOVE_ALL_DEVICES = 1 << 63
_TOP = 1 << 62  # above the addresses of all devices, with room for every range that a replay may want


class Driver(Protocol):
    """The source of segments. A refused request changes nothing."""

    @property
    def free_bytes(self) -> int | None:
        """Bytes that can still be reserved; None for no limit."""

    def reserve(self, size: int, stream: int, pool: PoolId) -> int | None:
        """The address of a new segment; None if there is no memory left (`cudaMalloc`).

        Args:
            size: Bytes, of a whole segment.
            stream: The stream that asks.
            pool: The private pool that asks, or the default one.
        """

    def release(self, address: int, size: int) -> None:
        """Release a segment (`cudaFree`)."""

    def reserve_range(self, size: int, stream: int, pool: PoolId) -> int:
        """Addresses for an expandable segment, without memory behind them (`cuMemAddressReserve`).

        Args:
            size: Bytes of addresses.
            stream: The stream that asks.
            pool: The private pool that asks, or the default one.
        """

    def map(self, address: int, size: int) -> bool:
        """Map memory at addresses; False if there is none left (`cuMemCreate`, `cuMemMap`)."""

    def unmap(self, address: int, size: int) -> None:
        """Unmap the memory at addresses."""


class PackingDriver:
    """A device of some capacity that places segments as CUDA on Linux was seen to.

    Ranges of whole 32 MiB go downwards; requests below that are packed upwards inside such a range; what was given back
    is used again, the highest hole first.

    Args:
        capacity: Bytes that can be reserved; None for no limit.
        top: The address below which everything lies.
        reserved: Bytes that another driver gave before.
        given: Addresses of segments among these; once released they are not used again.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        top: int = _TOP,
        reserved: int = 0,
        given: frozenset[int] = frozenset(),
    ) -> None:
        self.capacity = capacity
        self.reserved = reserved
        self._given = given
        self._lowest = top // _CHUNK * _CHUNK
        self._chunks = Ranges()
        self._pieces = Ranges()

    @property
    def free_bytes(self) -> int | None:
        """What is left of the capacity."""
        return None if self.capacity is None else self.capacity - self.reserved

    def reserve(self, size: int, stream: int, pool: PoolId) -> int | None:
        """The address of a new segment, or None."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return None
        self.reserved += size
        if size >= _CHUNK:
            return self._whole_chunks(size)
        address = self._pieces.take_lowest(size)
        if address is None:
            address = self._whole_chunks(_CHUNK)
            self._pieces.add(address + size, _CHUNK - size)
        return address

    def release(self, address: int, size: int) -> None:
        """Take a segment back; a range of which nothing is left in use becomes a hole for large ones."""
        self.reserved -= size
        if address in self._given:
            return
        if size >= _CHUNK:
            self._chunks.add(address, _in_chunks(size))
            return
        start, length = self._pieces.add(address, size)
        first, last = _in_chunks(start), (start + length) // _CHUNK * _CHUNK
        if last > first:
            self._pieces.remove(first, last - first)
            self._chunks.add(first, last - first)

    def reserve_range(self, size: int, stream: int, pool: PoolId) -> int:
        """Fresh addresses; they are not what runs out."""
        return self._fresh(size)

    def map(self, address: int, size: int) -> bool:
        """Whether the capacity allows this much more."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Give the bytes back."""
        self.reserved -= size

    def arrangement(self) -> tuple[object, ...]:
        """All that later answers depend on, to be compared."""
        return self.reserved, self._lowest, tuple(self._chunks), tuple(self._pieces)

    def _whole_chunks(self, size: int) -> int:
        address = self._chunks.take_highest(_in_chunks(size))
        return self._fresh(size) if address is None else address

    def _fresh(self, size: int) -> int:
        self._lowest -= _in_chunks(size)
        return self._lowest


def _in_chunks(number: int) -> int:
    return -(-number // _CHUNK) * _CHUNK
