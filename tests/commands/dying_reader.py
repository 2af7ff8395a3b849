"""A reader of recordings whose process dies. In a file of its own: the processes that have it import nothing else."""

from __future__ import annotations

import os

from tracer.answers.ranks import RankPeak
from tracer.sessions.jobs.read_recordings import read_rank


def dying_reader(file: str, device: int | None) -> RankPeak:
    """As when the system ends a process that takes too much memory, at rank 3."""
    if "rank3" in file:
        os._exit(9)
    return read_rank(file, device)
