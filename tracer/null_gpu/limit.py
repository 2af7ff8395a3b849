"""How much of a null GPU a program may take: the card's memory, or for a while without end."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tracer.null_gpu.cards import Card
from tracer.units import GIB

_WITHOUT_END_BYTES = 4096 * GIB


@contextmanager
def without_limit(cards: Sequence[Card]) -> Iterator[None]:
    """Nothing runs out of memory meanwhile: what a program needs is seen, and the card stays what it is.

    Args:
        cards: What this process runs on, one for each device.
    """
    library = ctypes.CDLL(None)
    for device in range(len(cards)):
        library.null_gpu_limit_bytes(device, ctypes.c_size_t(_WITHOUT_END_BYTES))
    try:
        yield
    finally:
        for device, card in enumerate(cards):
            library.null_gpu_limit_bytes(device, ctypes.c_size_t(card.usable_bytes))
