"""A folder for one session's files alone: two that run at the same time, as parent and child, share none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracer.null_gpu.writes import own_files
from tracer.working_folder import AnchoredPath

fcntl: Any
try:
    import fcntl
except ImportError:  # a system without locks of this kind
    fcntl = None


class OwnFolder:
    """The folder that was asked for, or one in it if a session that is still running has that.

    A lock on the folder itself tells, which leaves no file and goes with the process.

    Attributes:
        is_another: Whether it is not what was asked for.
    """

    def __init__(self, wanted: Path) -> None:
        self._path = AnchoredPath(wanted)
        self.is_another = False
        self._lock: int | None = None
        self._made = False

    @property
    def path(self) -> Path:
        """The folder; what was asked for until it is taken."""
        return self._path.now()

    def take(self) -> Path:
        """Lock the folder, or one of its own below it if another session has it; returns the one locked."""
        with own_files():
            return self._take()

    def _take(self) -> Path:
        path = self.path
        if not self._has_locked(path):
            self.is_another = True
            path /= f"process{os.getpid()}"
            number = 1
            while not self._has_locked(path):
                number += 1
                path = path.with_name(f"process{os.getpid()}_{number}")
            self._path = AnchoredPath(path)
        return path

    def _has_locked(self, path: Path) -> bool:
        """Whether it was free; where there are no locks, or no right to the folder, nobody can say that it was not."""
        if fcntl is None:
            return True
        opened = None
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            opened = os.open(path, os.O_RDONLY)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened) if opened is not None else None
            return False
        except OSError:
            os.close(opened) if opened is not None else None
            return True
        self._lock = opened
        return True

    def let_go(self) -> None:
        """Unlock the folder, and remove it if nothing was written."""
        if self._lock is not None and fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        self.leave_to_parent()
        if self._made:
            with suppress(OSError), own_files():
                self.path.rmdir()

    def leave_to_parent(self) -> None:
        """Close the lock in a forked child; the parent keeps it."""
        opened, self._lock = self._lock, None
        if opened is not None:
            os.close(opened)
