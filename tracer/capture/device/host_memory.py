"""The host's side of a process: its resident memory, and what of it is pinned for a device."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATM = "/proc/self/statm"


def resident_bytes() -> int | None:
    """Resident memory of this process now; where the system does not say, its highest so far, or None.

    Source: `proc(5)`, second field of statm, in pages; `getrusage(2)`, in KiB on Linux and in bytes on macOS.
    """
    try:  # without a file object, which costs more than the system's answer: this is asked at every step
        file = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(file, 128).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return None
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest << 10


def host_total_bytes() -> int | None:
    """What this process may use of the host's memory: the limit of its control group, or all of it; None if unknown.

    Source: cgroup v2 `memory.max`, v1 `memory.limit_in_bytes`.
    """
    totals = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            totals.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    with suppress(AttributeError, ValueError, OSError):
        totals.append(os.sysconf("SC_PHYS_PAGES") * _PAGE)
    return min(totals, default=None)


def pinned_bytes() -> tuple[int, int] | None:
    """Pinned host memory: what torch's caching allocator for it has handed out, and what it holds; None if unknown."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    figures = stats()
    used_bytes = figures.get("active_bytes.current", figures.get("allocated_bytes.current"))
    held_bytes = figures.get("allocated_bytes.current", figures.get("segment_bytes.current", used_bytes))
    return None if used_bytes is None or held_bytes is None else (int(used_bytes), int(held_bytes))
