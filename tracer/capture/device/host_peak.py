"""The most host memory that this process and all that it has started, such as the workers of loaders, held at once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tracer.capture.device.host_memory import pinned_peak_bytes
from tracer.capture.forked_child import in_forked_child

_PROGRAM: Final = Path(__file__).with_name("process_tree.py")
_ANSWER_S: Final = 5.0
_OWN_LIBRARIES: Final = "LD_PRELOAD"


@dataclass(frozen=True, slots=True)
class HostPart:
    """Processes of one name."""

    name: str  # As the system has it, such as `pt_data_worker`
    num_processes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HostPeak:
    """Resident memory of a process and its descendants when together they held the most; the parts sum to it.

    Pages of mapped files are left out, which the system may drop. A page that several of the processes share counts
    once.
    """

    own_bytes: int  # Of the process itself
    others: tuple[HostPart, ...] = ()  # Of those that it has started, the largest first
    # On the null GPU: pinned by the process and written by nothing. A real driver has it taken from the beginning.
    unwritten_bytes: int = 0
    pinned_bytes: int = 0  # Most that torch has pinned for GPUs in this process, at whatever moment
    num_looks: int = 1  # Times that it was looked at

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.own_bytes + self.unwritten_bytes + sum(part.bytes for part in self.others)

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> HostPeak:
        """Return the peak that `dataclasses.asdict` has made these values of."""
        return cls(**values | {"others": tuple(HostPart(**part) for part in values["others"])})


class HostFollower:
    """Has the tree of this process followed by another one, which is no child of this process; in a fork, nothing."""

    def __init__(self, unwritten_bytes: Callable[[], int]) -> None:
        """Begin to look; see `host_followed`."""
        self._unwritten_bytes = unwritten_bytes
        variables = {name: value for name, value in os.environ.items() if name != _OWN_LIBRARIES}
        command = [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid())]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._looker = subprocess.Popen(command, env=variables, start_new_session=True, **pipes)  # type: ignore[call-overload]
        self._looker.wait()
        self._forget_forks = in_forked_child(self._close)

    def peak(self) -> HostPeak | None:
        """Return the peak so far; None where the other process does not answer."""
        with suppress(OSError, ValueError):
            os.write(self._looker.stdin.fileno(), b"\n")
            is_answered, _, _ = select.select([self._looker.stdout], [], [], _ANSWER_S)
            if is_answered and (text := self._looker.stdout.readline()):
                return self._peak_of(*json.loads(text))
        return None

    def end(self) -> None:
        """Look no longer."""
        self._forget_forks()
        self._close()

    def _peak_of(self, num_looks: int, parts: list[tuple[int, str, int]]) -> HostPeak:
        own = sum(size for process, _, size in parts if process == os.getpid())
        sizes: dict[str, list[int]] = {}
        for process, name, size in parts:
            if process != os.getpid():
                sizes.setdefault(name, []).append(size)
        others = [HostPart(name, len(each), sum(each)) for name, each in sizes.items()]
        others.sort(key=lambda part: -part.bytes)
        return HostPeak(own, tuple(others), self._unwritten_bytes(), pinned_peak_bytes(), num_looks)

    def _close(self) -> None:
        self._looker.stdin.close()
        self._looker.stdout.close()


_followers: list[HostFollower] = []
"""The follower of this process; empty where it is not followed."""


@contextmanager
def host_followed(unwritten_bytes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within the block the host memory of this process and its descendants is followed, where the system has /proc.

    Args:
        unwritten_bytes: Returns `HostPeak.unwritten_bytes`.
    """
    if _followers or not Path("/proc/self/stat").exists():
        yield
        return
    _followers.append(follower := HostFollower(unwritten_bytes))
    try:
        yield
    finally:
        _followers.remove(follower)
        follower.end()


def followed_peak() -> HostPeak | None:
    """Return the peak of this process's tree so far; None where it is not followed."""
    return _followers[-1].peak() if _followers else None
