"""While a program runs on the null GPU, its files go to a folder of the run: none is a result."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from tracer.exporters.files import check_folder
from tracer.exporters.screen.console import Console
from tracer.null_gpu import writes
from tracer.null_gpu.job.place import RankPlace
from tracer.sessions.folder import OwnFolder
from tracer.sessions.jobs.ranks import rank_folder

FOLDER: Final = "null-gpu-writes"
"""Name of the folder below the results."""
_IN_PLACE: Final = "Static programs and raw system calls write in place all the same."
_BEFORE_STEPS: Final = "written-before-steps"


class ProgramWrites:
    """The folder that this process's program writes to; None where files are not redirected."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @contextmanager
    def aside(self, save_dir: Path | None, console: Console) -> Iterator[None]:
        """Within the block and until the process ends, what the program writes goes to a folder of the run.

        This program's own thread is not redirected after the block.

        Args:
            save_dir: Folder of the run's results, which keeps the files; None if they are deleted.
        """
        if save_dir is not None:
            check_folder(save_dir)
        results = None if save_dir is None else save_dir.absolute()  # the program may change its folder
        own, owner, place = _free_folder(results), os.getpid(), RankPlace.here()
        self._folder = folder = own.path
        if place is not None and place.rank and (before := place.folder / _BEFORE_STEPS).exists():
            writes.mirror(before, folder)
        first = _folder_of_rank(results, 0) if place is not None and place.rank else None
        in_place = [path for path in (results, place.folder if place is not None else None) if path is not None]
        atexit.register(_finish, own, owner, is_kept=results is not None)
        writes.redirect_safetensors()
        writes.begin(folder, _folders_of_program(results), in_place, first)
        try:
            yield
        finally:
            writes.hold(1)
            if os.getpid() == owner:
                writes.end()
                if files := writes.written(folder):
                    where = "a folder that is deleted"
                    if save_dir is not None and results is not None:
                        common = Path(os.path.commonpath([path.parent for path in files]))
                        is_below = common.is_relative_to(results)  # and named as the user named the results
                        where = f"{save_dir / common.relative_to(results) if is_below else common}, not over yours"
                    number = "file" if len(files) == 1 else f"{len(files):,} files"
                    console.say(f"Note: Nothing was computed, so the script's {number} went to {where}. {_IN_PLACE}")
                # Before what the program wants done at the end of its process, such as a last checkpoint.
                atexit.register(writes.hold, -1)

    def share_with_ranks(self) -> None:
        """Before a job's rank 0 begins its first step: leave a copy of what it has written for ranks that run after it.

        So they find the data that it has prepared, and no checkpoint of a training that is over.
        """
        place = RankPlace.here()
        if self._folder is not None and place is not None and place.rank == 0:
            with writes.own_files(), suppress(FileExistsError):
                shutil.copytree(self._folder, place.folder / _BEFORE_STEPS, symlinks=True)

    def copy_in_fork(self) -> None:
        """Give a forked child that goes on as a trial its own copy of the files written so far."""
        if self._folder is not None:
            with writes.own_files():
                folder = self._folder.with_name(f"{self._folder.name}-{os.getpid()}")
                shutil.copytree(self._folder, folder, symlinks=True)
            writes.of_child(folder)
            self._folder = folder

    def delete(self) -> None:
        """Before a process ends by `os._exit`: delete its folder, and its copy alone if it is such a child."""
        if self._folder is not None:
            writes.hold(1)
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # others' are in it
                self._folder.parent.rmdir()


WRITES: Final = ProgramWrites()
"""One object, since files are redirected for the whole process."""


def _folders_of_program(results: Path | None) -> list[Path]:
    """The folder that the program runs in, then what its arguments name."""
    named = [Path(argument.rpartition("=")[2]).absolute() for argument in sys.argv[1:] if "/" in argument]
    named = [path for path in named if results is None or not path.is_relative_to(results)]
    return [Path.cwd(), *named, *(path.parent for path in named if path.is_file())]


def _folder_of_rank(results: Path | None, rank: int) -> Path:
    place = RankPlace.here()
    if place is None:
        return Path(tempfile.mkdtemp(prefix=f"{FOLDER}-")) / "0" if results is None else results / FOLDER
    return place.folder / f"writes{rank}" if results is None else rank_folder(results, rank) / FOLDER


def _free_folder(results: Path | None) -> OwnFolder:
    """An empty folder that no other process uses."""
    place = RankPlace.here()
    wanted = _folder_of_rank(results, place.rank if place is not None else 0)
    for number in count(1):
        own = OwnFolder(wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}"))
        path = own.take()
        if not own.is_another and (path / writes.LOCK).exists():  # an earlier run's
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        # Another process's folder is deleted with all that is in it: this one's lies beside it.
        if not own.is_another and not any(path.iterdir()):
            return own
        own.release()
    raise AssertionError  # the loop has no end


def _finish(own: OwnFolder, owner: int, *, is_kept: bool) -> None:
    """Leave only the program's files, or nothing, when the process ends."""
    if os.getpid() != owner:
        return
    with writes.own_files(), suppress(OSError):
        if not is_kept and RankPlace.here() is None:
            shutil.rmtree(own.path.parent)
        elif writes.written(own.path):  # of a job's rank 0, other ranks may read them
            writes.tidy(own.path)
        else:
            shutil.rmtree(own.path)
        own.release()
