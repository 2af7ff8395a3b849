"""A small model of the caching allocator: serves requests from segments and records what torch would record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.snapshot.dumps import Row, entry, frame

SEGMENT_BYTES = 1 << 16
_GAP = 1 << 20


def rounded(size: int) -> int:
    return max(512, -(-size // 512) * 512)


@dataclass
class Segment:
    address: int
    size: int
    blocks: dict[int, tuple[int, int, bool]] = field(default_factory=dict)  # address -> (size, requested, is pending)

    def hole(self, size: int) -> int | None:
        """The first address with this much room."""
        at = self.address
        for address in sorted(self.blocks):
            if address - at >= size:
                return at
            at = address + self.blocks[address][0]
        return at if self.address + self.size - at >= size else None

    def holes(self) -> list[int]:
        edges = [self.address]
        for address in sorted(self.blocks):
            edges += [address, address + self.blocks[address][0]]
        edges.append(self.address + self.size)
        return [end - begin for begin, end in zip(edges[::2], edges[1::2], strict=True)]


class AllocatorModel:
    """One device. Keeps its own books, with which the replay of its recording must agree.

    `record` switches the recording on; what was allocated before is in the segments alone.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.trace: list[Row] = []
        self.is_recording = False
        self.curve = [(0, 0, 0)]  # requested, allocated, reserved: at the start and after each entry
        self._next = 1 << 32
        self._time = 1000

    def alloc(self, size: int, *, tick: int = 0) -> int:
        need = rounded(size)
        for seg in self.segments:
            address = seg.hole(need)
            if address is not None:
                break
        else:
            seg, address = self._reserve(max(SEGMENT_BYTES, need), tick)
        seg.blocks[address] = (need, size, False)
        self._log("alloc", address, size, tick)
        return address

    def request_free(self, address: int, *, tick: int = 0) -> None:
        seg = self._segment_of(address)
        size, requested, _ = seg.blocks[address]
        seg.blocks[address] = (size, requested, True)
        self._log("free_requested", address, requested, tick)

    def complete_free(self, address: int, *, tick: int = 0) -> None:
        seg = self._segment_of(address)
        requested = seg.blocks.pop(address)[1]
        self._log("free_completed", address, requested, tick)

    def empty_cache(self, *, tick: int = 0) -> None:
        for seg in [seg for seg in self.segments if not seg.blocks]:
            self.segments.remove(seg)
            self._log("segment_free", seg.address, seg.size, tick)

    def start_recording(self) -> None:
        self.is_recording, self.trace, self.curve = True, [], [self._books()]

    def dump(self, *, keep: int | None = None) -> dict[str, Any]:
        """The snapshot; `keep` imitates a ring buffer that has only the newest entries."""
        trace = self.trace if keep is None else self.trace[len(self.trace) - min(keep, len(self.trace)) :]
        return {"segments": [self._dumped(seg) for seg in self.segments], "device_traces": [trace]}

    def live(self) -> list[tuple[int, int, bool]]:
        return [piece for seg in self.segments for piece in seg.blocks.values()]

    def largest_hole(self) -> int:
        return max((hole for seg in self.segments for hole in seg.holes()), default=0)

    def _reserve(self, size: int, tick: int) -> tuple[Segment, int]:
        seg = Segment(self._next, size)
        self._next += size + _GAP
        self.segments.append(seg)
        self._log("segment_alloc", seg.address, size, tick)
        return seg, seg.address

    def _segment_of(self, address: int) -> Segment:
        return next(seg for seg in self.segments if address in seg.blocks)

    def _log(self, action: str, addr: int, size: int, tick: int) -> None:
        if not self.is_recording:
            return
        self._time += tick
        frames = [frame("step", line=size % 7 + 1)]
        self.trace.append(entry(action, addr, size, time_us=self._time, frames=frames))
        self.curve.append(self._books())

    def _books(self) -> tuple[int, int, int]:
        live = self.live()
        reserved = sum(seg.size for seg in self.segments)
        return sum(piece[1] for piece in live), sum(piece[0] for piece in live), reserved

    def _dumped(self, seg: Segment) -> Row:
        blocks, at = [], seg.address
        for address in [*sorted(seg.blocks), seg.address + seg.size]:
            if address > at:
                blocks.append(
                    {"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []}
                )
            if address in seg.blocks:
                size, requested, pending = seg.blocks[address]
                state = "active_pending_free" if pending else "active_allocated"
                blocks.append(
                    {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}
                )
                at = address + size
        return {
            "device": 0,
            "address": seg.address,
            "total_size": seg.size,
            "stream": 0,
            "segment_type": "large",
            "blocks": blocks,
        }
