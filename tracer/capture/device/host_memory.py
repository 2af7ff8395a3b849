"""The host's side of a process: its resident memory, what of it is pinned for a device, the files mapped into it.

Pages of a mapped file, as of safetensors, `torch.load(mmap=True)` and `numpy.memmap`, are the file's: the system reads
them when they are touched and may drop them, and no allocator gave them.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
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
    """Return the bytes of host memory that this process may use: its control group's limit, or all; None if unknown.

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


def pinned_peak_bytes() -> int:
    """Return the most host memory that torch's caching allocator has pinned at once; 0 where CUDA has not begun.

    Source: `torch.cuda.host_memory_stats`.
    """
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    figures = stats()
    return int(figures.get("allocated_bytes.peak", figures.get("segment_bytes.peak", 0)))


_MAPS = "/proc/self/maps"
_LIBRARY = ".so"
_NO_FILES = ("/dev/", "/memfd:", "/SYSV")
_UNLINKED = " (deleted)"


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file mapped into memory, with its first address and the address behind its last."""

    begin: int
    end: int
    path: str


def mapped_files() -> tuple[MappedFile, ...]:
    """Return the mapped files in the order of their addresses, without libraries; none where the system does not say.

    Source: `proc(5)`, maps.
    """
    try:
        text = Path(_MAPS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    files: list[MappedFile] = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        path = fields[5] if len(fields) > 5 else ""
        if not path.startswith("/") or _LIBRARY in path or path.startswith(_NO_FILES) or path.endswith(_UNLINKED):
            continue
        begin, end = (int(part, 16) for part in fields[0].split("-"))
        if files and (files[-1].end, files[-1].path) == (begin, path):
            begin = files.pop().begin
        files.append(MappedFile(begin, end, path))
    return tuple(files)


def file_at(files: tuple[MappedFile, ...], address: int) -> MappedFile | None:
    """Return the file that lies at an address."""
    place = bisect_right(files, address, key=attrgetter("begin")) - 1
    return files[place] if place >= 0 and address < files[place].end else None


def gaps(begin: int, end: int, taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of a piece of memory lies in none of some others.

    0 to 10, and 2 to 4 and 4 to 6 are taken: 0 to 2, 6 to 10.
    """
    pieces = []
    for start, stop in sorted(taken):
        if start > begin:
            pieces.append((begin, min(start, end)))
        begin = max(begin, stop)
        if begin >= end:
            return pieces
    return [*pieces, (begin, end)]
