"""How far a prediction may be off: what an allocation more or less changes of what is reserved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.allocator.settings import AllocatorSettings
from tracer.arrays import Int, PerAllocation
from tracer.rehearsal.device_memory import DeviceMemory, DeviceRequests, serve
from tracer.units import MIB

_LARGE_BYTES = MIB  # smaller requests have a pool of their own, whose segments are of 2 MiB


@dataclass(frozen=True, slots=True)
class Spread:
    """Lowest and highest of several answers."""

    low_bytes: int  # Least bytes that are reserved
    high_bytes: int  # Most bytes that are reserved


def reserved_spread(
    requests: DeviceRequests,
    memory: DeviceMemory,
    settings: AllocatorSettings | None = None,
    *,
    capacity_bytes: int | None = None,
) -> Spread:
    """The range of peak reserved memory if single allocations were others than rehearsed.

    High: every operator that makes something large also takes as much for its own use, and gives it back; or every
    convolution, or those of backward passes alone, takes a workspace for copies in another layout, as many of cuDNN's
    engines do and as nobody knows of a version that cannot be asked. Low: what fills the device at its peak is packed
    without gaps, or with the gaps that expandable segments leave.

    Args:
        requests: DeviceRequests in order.
        capacity_bytes: What it can reserve; None for no limit.
    """
    more = [_with_scratch(requests)]
    if requests.undecided_bytes.any():
        more += [_with_workspaces(requests, only_backward=variant) for variant in (False, True)]
    expandable = serve(requests, AllocatorSettings(expandable_segments=True))
    answers = [memory.peak_reserved_bytes, expandable.peak_reserved_bytes]
    high = max(*answers, *(serve(variant, settings).peak_reserved_bytes for variant in more))
    limit = capacity_bytes if capacity_bytes is not None else high
    return Spread(low_bytes=min(*answers, limit), high_bytes=max(memory.peak_reserved_bytes, min(high, limit)))


def _with_scratch(requests: DeviceRequests) -> DeviceRequests:
    """The same with a second, short-lived allocation beside every large one that an operator makes."""
    is_large = (requests.size_bytes >= _LARGE_BYTES) & (requests.op >= 0)
    return _with_more(requests, np.where(is_large, requests.size_bytes, 0))


def _with_workspaces(requests: DeviceRequests, *, only_backward: bool) -> DeviceRequests:
    """The same with all that libraries may take for themselves."""
    taken = requests.in_backward if only_backward else np.ones(len(requests.op), bool)
    return _with_more(requests, np.where(taken, requests.undecided_bytes, 0))


def _with_more(requests: DeviceRequests, more_bytes: PerAllocation[Int]) -> DeviceRequests:
    """The same with an allocation behind each row, of so many bytes, that is freed at once; 0 for none."""
    repeat = np.where(more_bytes > 0, 3, 1)
    rows = np.repeat(np.arange(len(requests.storage)), repeat)
    first = np.cumsum(repeat) - repeat
    nth = np.arange(len(rows)) - first[rows]
    new = requests.storage.max(initial=0) + 1 + rows
    sign = np.where(nth == 2, -1, 1)
    return DeviceRequests(
        storage=np.where(nth == 0, requests.storage[rows], new),
        size_bytes=np.where(nth == 0, requests.size_bytes[rows], sign * more_bytes[rows]),
        op=requests.op[rows],
        step=requests.step[rows],
        undecided_bytes=np.zeros(len(rows), np.int64),
        in_backward=requests.in_backward[rows],
    )
