"""The folder that a session writes to: one that no other session has, and under torchrun the rank's own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.answers.files import PAGE
from tracer.exporters.files import check_folder
from tracer.null_gpu.writes import own_files
from tracer.sessions.jobs.ranks import Rank, RankMessages, peak_of, this_rank
from tracer.working_folder import AnchoredPath

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tracer.answers.run_results import RunResults
    from tracer.sessions.output_files import Written


fcntl: Any
try:
    import fcntl
except ImportError:  # a system without locks of this kind
    fcntl = None


class OwnFolder:
    """The folder that was asked for, or one in it if a session that is still running has that.

    A lock on the folder itself tells, which leaves no file and goes with the process.
    """

    def __init__(self, wanted: Path) -> None:
        self._path = AnchoredPath(wanted)
        self.is_another = False  # Whether it is not the folder that was asked for
        self._lock: int | None = None
        self._made = False

    @property
    def path(self) -> Path:
        """The folder; what was asked for until it is taken."""
        return self._path.now()

    def take(self) -> Path:
        """Lock the folder, or one of its own below it if another session has it; returns the one locked."""
        path = self.path
        with own_files():
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
        """Lock a folder; False if another session holds it. True without locks, or without rights to the folder."""
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

    def release(self) -> None:
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


class SessionFolder(OwnFolder):
    """The folder of one session's files, what became of each, and the rank that it speaks for."""

    def __init__(self, save_dir: str | Path) -> None:
        """Prepare; nothing is taken."""
        self._save_dir = AnchoredPath(Path(save_dir))
        # This process's rank; None where there is one process alone, or another session speaks for the rank
        self.rank: Rank | None = this_rank()
        super().__init__(self.save_dir if (messages := self.messages) is None else messages.own_folder)
        self.written: tuple[Written, ...] = ()  # What became of each file so far
        check_folder(self.save_dir)

    @property
    def save_dir(self) -> Path:
        """The folder that was asked for."""
        return self._save_dir.now()

    @property
    def messages(self) -> RankMessages | None:
        """The files by which this session tells the other ranks of its own; None where it speaks for none."""
        return RankMessages(self.rank, self.save_dir) if self.rank is not None else None

    @property
    def is_of_first_rank(self) -> bool:
        """True if this process may use the screen: one of all ranks does."""
        return self.rank is None or self.rank.index == 0

    @property
    def names(self) -> list[str]:
        """Names of the files that were written."""
        return [file.path.name for file in self.written if file.error is None]

    @property
    def page(self) -> Path | None:
        """The page, if it was written."""
        return self.path / PAGE.file_name if PAGE.file_name in self.names else None

    def write(
        self,
        results: RunResults,
        *,
        leave_out: Collection[str] = (),
        tell: Callable[[Written], object] = lambda written: None,
    ) -> None:
        """Write the files of a profile; an interruption goes on its way, and what was written until then is known."""
        from tracer.sessions.output_files import write_outputs

        def note(written: Written) -> None:
            self.written = (*(file for file in self.written if file.path != written.path), written)
            tell(written)

        write_outputs(results, self.path, leave_out=leave_out, tell=note)

    def finish(self, results: RunResults) -> None:
        """Leave a rank's last words for the summary of all ranks."""
        if (messages := self.messages) is not None:
            messages.finish(peak_of(messages.rank, results))

    def take(self) -> Path:
        """Lock the folder for this session, and remove what an earlier run of the same rank left."""
        path = super().take()
        if self.is_another:  # it is another session's, which speaks for the rank as well
            self.rank = None
        if (messages := self.messages) is not None:
            messages.begin()
        return path
