"""Memory that NCCL takes of a GPU beside torch's allocator: a range, by communicators and ranks that were sent to.

NCCL takes buffers for each channel to a neighbour, when a communicator's first collective runs: `NCCL_BUFFSIZE` and
those of its two protocols for small messages. How many channels there are follows from the links between the GPUs, of
which nothing is known here.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Self

from tracer.units import MIB, format_bytes

CHANNEL_BYTES = 14 * MIB
"""For each channel to a neighbour.

Source:
    NVIDIA/nccl issue 1685: the first all-to-all of 8 H100 took 3.28 GB on each, in allocations of 10 and 2 MiB, with 32
    channels to each of 7 others.
"""
LEAST_CHANNELS, MOST_CHANNELS = 2, 32
"""Channels of a communicator, and to one rank that is sent to.

Source:
    NVIDIA/nccl issues 1189 (2 to each rank over PCIe) and 1685 (32 over NVLink).
"""
MOST_BYTES = 688 * MIB
"""Bytes of one communicator, as a rule; all-reduces of one that is not described are said to take about 2 GB each.

Source:
    NVIDIA/nccl issue 964: 544 MB between two A100 and 688 between more, seen from outside. Issue 864: the 2 GB.
"""


@dataclass(frozen=True, slots=True)
class NcclBuffers:
    """Parts of one process that NCCL takes memory for."""

    communicators: int = 0  # Number of communicators in which a collective of several ranks has run, the most at once
    partners: int = 0  # Ranks of theirs that this one sent to or received from, the most at once

    @classmethod
    def of_this_process(cls) -> Self:
        """Read what NCCL would have been used for in this process, which runs on the null GPU."""
        library = ctypes.CDLL(None)
        return cls(library.null_gpu_nccl_communicators(), library.null_gpu_nccl_partners())

    @property
    def least_bytes(self) -> int:
        """The least that NCCL takes: two channels each, as between GPUs without NVLink."""
        return (self.communicators + self.partners) * LEAST_CHANNELS * CHANNEL_BYTES

    @property
    def most_bytes(self) -> int:
        """The most that was observed for as many communicators and ranks, in a node with NVLink."""
        return self.communicators * MOST_BYTES + self.partners * MOST_CHANNELS * CHANNEL_BYTES

    @property
    def words(self) -> str:
        """The range in words, as in `28.00 to 688.00 MiB for 1 communicator`; empty where there is none."""
        if not self.most_bytes:
            return ""
        parts = [_counted(self.communicators, "communicator")] if self.communicators else []
        parts += [_counted(self.partners, "rank") + " that it sends to or receives from"] if self.partners else []
        return f"{format_bytes(self.least_bytes)} to {format_bytes(self.most_bytes)} for {' and '.join(parts)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
