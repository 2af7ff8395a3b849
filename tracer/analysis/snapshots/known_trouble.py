"""Settings that are known to cost memory, each with a replay that shows it."""

from __future__ import annotations

from dataclasses import replace

from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.settings import AllocatorSettings
from tracer.units import MIB, format_bytes

_ROUNDS = 100


def known_trouble(settings: AllocatorSettings, *, is_worse: bool) -> list[str]:
    """What goes wrong with some settings, in sentences.

    Args:
        settings: The settings.
        is_worse: The history at hand needs more under them.
    """
    sentences = []
    if settings.expandable_segments and settings.max_split_size is not None:
        limit = settings.max_split_size
        both, alone = _held_apart(settings, limit), _held_apart(replace(settings, max_split_size=None), limit)
        if both > alone:
            sentences.append(
                "max_split_size_mb keeps large free blocks of expandable segments from being used again (pytorch issue "
                f"123548): a loop of {_ROUNDS} rounds reserves {format_bytes(both)} with both, {format_bytes(alone)} "
                "with expandable segments alone."
            )
    if is_worse and settings.max_split_size is not None and not settings.expandable_segments:
        sentences.append(
            "max_split_size_mb leaves large free blocks to requests of nearly their size, and reserves more."
        )
    if is_worse and any(parts > 1 for parts in settings.roundup_power2_divisions):
        sentences.append(
            "roundup_power2_divisions makes blocks larger than asked for, and here that costs more than it saves."
        )
    return sentences


def _held_apart(settings: AllocatorSettings, limit: int) -> int:
    """The reserved bytes of the loop of that issue, with blocks in proportion to `max_split_size`.

    Each round makes two blocks whose freed memory is one large piece, and a small one behind it that stays.
    """
    first, second = limit * 91 // 128, limit * 91 // 256
    allocator = CachingAllocator(settings)
    for _ in range(_ROUNDS):
        large = [allocator.allocate(first), allocator.allocate(second)]
        allocator.allocate(2 * MIB)
        for block in large:
            allocator.free(block)
    return allocator.peak_reserved_bytes
