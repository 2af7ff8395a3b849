"""Files that this process has mapped into its memory, as safetensors, `torch.load(mmap=True)` and `numpy.memmap` do.

Their pages are the file's: the system reads them when they are touched and may drop them, and no allocator gave them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

_MAPS = "/proc/self/maps"
_LIBRARY = ".so"
_NO_FILES = ("/dev/", "/memfd:", "/SYSV")
_UNLINKED = " (deleted)"


@dataclass(frozen=True, slots=True)
class MappedFile:
    """Where a file lies in memory: its first address, and the one behind its last."""

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
