"""Host memory of a process and of all that it has started, looked at from outside until the process ends.

`HostFollower` runs this file alone, in a process that loads neither torch nor this package. Looks take 5 % of the time
of one processor at most: after one that took 0.1 s the next comes 2 s later.

Source: `proc(5)`: stat, status, smaps_rollup, fd.
"""

import json
import os
import select
import sys
import time
from pathlib import Path

_LEAST_PAUSE_S = 0.2
_PAUSE_OF_COST = 20
_BLOCK = 512
_NULL_GPU = "/memfd:null-gpu"
"""Files that stand for device memory on the null GPU, whose pages are the host's."""


class Looks:
    """Looks at a process and its descendants, and keeps what they held when together they held the most."""

    def __init__(self, root: int) -> None:
        """Set up; nothing is looked at."""
        self.root = root
        self.peak_bytes = 0
        self.parts: list[tuple[int, str, int]] = []  # At the peak: process, name, bytes
        self.num_looks = 0
        self._known: dict[int, str] = {}  # Processes of the tree with the time of their start, also of orphans

    def look(self) -> bool:
        """Look once; return whether the process is still there."""
        tree = self._tree()
        if self.root not in tree:
            return False
        self.num_looks += 1
        sizes = {process: _resident_bytes(process) for process in tree}
        if sum(sizes.values()) <= self.peak_bytes:  # what counts shared pages once is no more than that
            return True
        if len(tree) > 1:  # which walks all pages: 24 ms for 1 GiB
            sizes |= {process: size for process in tree if (size := _split_bytes(process))}
        if sum(sizes.values()) > self.peak_bytes and (device := _null_gpu_bytes(tree)):
            sizes[self.root] = max(0, sizes[self.root] - device)
        if (most := sum(sizes.values())) > self.peak_bytes:
            self.peak_bytes = most
            self.parts = [(process, _name(process), size) for process, size in sizes.items() if size]
        return True

    def _tree(self) -> set[int]:
        """Return the processes of the tree that are alive; one whose parent has ended stays in it."""
        parents, starts = {}, {}
        numbers = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
        for process in numbers:
            if process != os.getpid() and (fields := _stat(process)):
                parents[process], starts[process] = int(fields[1]), fields[19]
        self._known = {process: start for process, start in self._known.items() if starts.get(process) == start}
        children: dict[int, list[int]] = {}
        for process, parent in parents.items():
            children.setdefault(parent, []).append(process)
        waiting = [process for process in (self.root, *self._known) if process in starts]
        while waiting:
            process = waiting.pop()
            self._known[process] = starts[process]
            waiting += [child for child in children.get(process, ()) if child not in self._known]
        return set(self._known)


def _stat(process: int) -> list[str]:
    """Return the fields behind the name, which may have spaces: state, parent, ...; empty where it has ended."""
    text = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return [] if not text or text[0] == "Z" else text


def _resident_bytes(process: int) -> int:
    """Return resident bytes without pages of mapped files, which the system may drop."""
    return _sum_of(f"/proc/{process}/status", ("RssAnon:", "RssShmem:"))


def _split_bytes(process: int) -> int:
    """Return the same, of which a page that n processes share counts as one nth; 0 where that is not told."""
    return _sum_of(f"/proc/{process}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))


def _sum_of(path: str, names: tuple[str, ...]) -> int:
    return sum(int(line.split()[1]) << 10 for line in _read(path).splitlines() if line.startswith(names))


def _null_gpu_bytes(tree: set[int]) -> int:
    sizes = {}
    for process in tree:
        try:
            for file in os.scandir(f"/proc/{process}/fd"):
                if str(Path(file.path).readlink()).startswith(_NULL_GPU):
                    found = file.stat()
                    sizes[found.st_ino] = found.st_blocks * _BLOCK
        except OSError:
            continue
    return sum(sizes.values())


def _name(process: int) -> str:
    return _read(f"/proc/{process}/comm").strip()


def _read(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16).decode(errors="replace")
        finally:
            os.close(file)
    except OSError:
        return ""


def answer_requests(root: int) -> None:
    """Look until the process ends or closes the pipe, and write the peak so far for each line that it writes."""
    looks = Looks(root)
    pause_s = 0.0
    while True:
        is_asked, _, _ = select.select([0], [], [], pause_s)
        if is_asked and not os.read(0, 1):
            return
        began = time.process_time()
        if not looks.look():
            return
        pause_s = max(_LEAST_PAUSE_S, _PAUSE_OF_COST * (time.process_time() - began))
        if is_asked:
            os.write(1, json.dumps([looks.num_looks, looks.parts]).encode() + b"\n")


if __name__ == "__main__":
    if not os.fork():  # its parent ends at once: the followed process has no child of ours
        answer_requests(int(sys.argv[1]))
