"""What a card is to the null GPU: the figures that torch and kernels ask a device for."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.units import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    Attributes:
        name: As torch says it.
        memory_bytes: What `cudaMemGetInfo` says that it has in all.
        capability: Compute capability, such as (9, 0).
        num_sms: Multiprocessors, which some kernels divide their work by.
        l2_bytes: The cache that flash attention and matrix multiplications ask for.
        shared_memory_bytes: Most that one block can opt in to.
        shared_memory_per_sm_bytes: What a multiprocessor has.
        threads_per_sm: How many a multiprocessor runs at once.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    num_sms: int
    l2_bytes: int = 40 * MIB
    shared_memory_bytes: int = 163 * KIB
    shared_memory_per_sm_bytes: int = 164 * KIB
    threads_per_sm: int = 2048


H100 = Card(
    "NVIDIA H100 80GB HBM3",
    memory_bytes=int(79.11 * GIB),
    capability=(9, 0),
    num_sms=132,
    l2_bytes=50 * MIB,
    shared_memory_bytes=227 * KIB,
    shared_memory_per_sm_bytes=228 * KIB,
)
"""The card of examples and tests."""
