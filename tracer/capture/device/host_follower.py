"""Follows the host memory of this process and of all that it has started, such as the workers of loaders."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tracer.capture.device import process_tree
from tracer.capture.device.host_memory import pinned_peak_bytes
from tracer.capture.device.host_peak import HostPart, HostPeak
from tracer.capture.forked_child import in_forked_child

_ANSWER_S: Final = 5.0
_OWN_LIBRARIES: Final = "LD_PRELOAD"


class HostFollower:
    """Has the tree of this process followed by another one, which is no child of this process; in a fork, nothing."""

    def __init__(self) -> None:
        """Begin to look."""
        variables = {name: value for name, value in os.environ.items() if name != _OWN_LIBRARIES}
        command = [sys.executable, "-I", "-S", process_tree.__file__, str(os.getpid())]
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
                return _peak_of(*json.loads(text))
        return None

    def end(self) -> None:
        """Look no longer."""
        self._forget_forks()
        self._close()

    def _close(self) -> None:
        self._looker.stdin.close()
        self._looker.stdout.close()


_followers: list[HostFollower] = []
"""That of this process, if it is followed."""


@contextmanager
def host_followed() -> Iterator[None]:
    """Within the block the host memory of this process and its descendants is followed, where the system has /proc."""
    if _followers or not Path("/proc/self/stat").exists():
        yield
        return
    _followers.append(follower := HostFollower())
    try:
        yield
    finally:
        _followers.remove(follower)
        follower.end()


def followed_peak() -> HostPeak | None:
    """Return the peak of this process's tree so far; None where it is not followed."""
    return _followers[-1].peak() if _followers else None


def _peak_of(num_looks: int, parts: list[tuple[int, str, int]]) -> HostPeak:
    own = sum(size for process, _, size in parts if process == os.getpid())
    sizes: dict[str, list[int]] = {}
    for process, name, size in parts:
        if process != os.getpid():
            sizes.setdefault(name, []).append(size)
    others = [HostPart(name, len(each), sum(each)) for name, each in sizes.items()]
    others.sort(key=lambda part: -part.bytes)
    return HostPeak(own, tuple(others), pinned_bytes=pinned_peak_bytes(), num_looks=num_looks)
