"""While a program runs on the null GPU: the values that decide sizes, and where its files go, for none is a result."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from tracer.exporters.files import check_folder
from tracer.null_gpu import process, writes
from tracer.null_gpu.job.place import RankPlace
from tracer.sessions.folder import OwnFolder
from tracer.sessions.jobs.ranks import rank_folder

if TYPE_CHECKING:
    from tracer.capture.run_facts import ValuesRead
    from tracer.null_gpu.values.answers import Answer
    from tracer.null_gpu.values.switch import HostValues, ValuesReport


_OURS = Path(__file__).parents[1]

_switched_on: list[HostValues] = []
"""Kernels are replaced for the whole process, so that there is one of these or none."""


@contextmanager
def values_on(answers: Mapping[tuple[str, int], Answer]) -> Iterator[None]:
    """Numbers that decide sizes are computed meanwhile; nothing where the device is not the null GPU."""
    if not process.is_active():
        yield
        return
    from tracer.null_gpu.values.switch import HostValues

    # Two runs of a program that seeds nothing ask for the same memory: weights decide masks, and those sizes.
    random.seed(0)
    np.random.seed(0)  # whatever a program draws from without a generator of its own
    torch.default_generator.manual_seed(0)
    values = HostValues(answers)
    _switched_on.append(values)
    try:
        yield
    finally:
        _switched_on.remove(values)
        values.close()


def values_read() -> ValuesRead | None:
    """Return the values that the program has read so far; None where values are off."""
    return read_by_program(_switched_on[-1].report()) if _switched_on else None


def read_by_program(report: ValuesReport) -> ValuesRead:
    """The report without what this program itself reads, such as a step's loss."""
    from tracer.capture.run_facts import LeftOut, ValueRead, ValuesRead

    reads = [
        ValueRead(
            file=read.line.file,
            line=read.line.number,
            function=read.line.function,
            operator=read.operator,
            count=read.count,
            value=read.value,
            known=read.known.name.lower(),
            answered=read.answered,
            decides_size=read.decides_size,
            num_empty=read.num_empty,
        )
        for read in report.reads
        if read.decides_size or not Path(read.line.file).is_relative_to(_OURS)
    ]
    return ValuesRead(
        reads=tuple(reads),
        left_out=tuple(LeftOut(reason, count) for reason, count in report.left_out),
        num_compiled_buffers=report.num_compiled_buffers,
        unused_answers=tuple(f"{file}:{number}" for file, number in report.unused_answers),
    )


FOLDER: Final = "null-gpu-writes"
"""Name of the folder below the results."""
_IN_PLACE: Final = "Static programs and raw system calls write in place all the same."
_BEFORE_STEPS: Final = "written-before-steps"
_current: list[Path] = []
"""The folder of this process; files are redirected for the whole process."""


@contextmanager
def writes_aside(save_dir: Path | None, *, tell: Callable[[str], None]) -> Iterator[None]:
    """Within the block and until the process ends, what the program writes goes to a folder of the run.

    This program's own thread is not redirected after the block. No-op where the process is not on the null GPU.

    Args:
        save_dir: Folder of the run's results, which keeps the files; None if they are deleted.
    """
    if not process.is_active():
        yield
        return
    shown = save_dir or Path()
    if save_dir is not None:
        check_folder(save_dir)
        save_dir = save_dir.absolute()  # the program may change its folder
    place, owner = RankPlace.here(), os.getpid()
    own = _folder(save_dir, place)
    folder = own.path
    _current[:] = [folder]
    if place is not None and place.rank and (before := place.folder / _BEFORE_STEPS).exists():
        writes.mirror(before, folder)
    first = _of_rank(save_dir, place, 0) if place is not None and place.rank else None
    in_place = [path for path in (save_dir, place.folder if place is not None else None) if path is not None]
    atexit.register(_finish_writes, own, owner, is_kept=save_dir is not None)
    writes.redirect_safetensors()
    writes.begin(folder, _of_program(save_dir), in_place, first)
    try:
        yield
    finally:
        writes.hold(1)
        if os.getpid() == owner:
            writes.end()
            if files := writes.written(folder):
                tell(_sentence(files, save_dir, shown))
            # Before what the program wants done at the end of its process, such as a last checkpoint.
            atexit.register(writes.hold, -1)


def share_with_ranks() -> None:
    """Before a job's rank 0 begins its first step: leave a copy of what it has written for ranks that run after it.

    So they find the data that it has prepared, and no checkpoint of a training that is over.
    """
    place = RankPlace.here()
    if _current and place is not None and place.rank == 0:
        with writes.own_files(), suppress(FileExistsError):
            shutil.copytree(_current[0], place.folder / _BEFORE_STEPS, symlinks=True)


def writes_in_fork() -> None:
    """In a forked child that goes on as a trial of its own: it has its own copy of what was written so far."""
    if _current:
        with writes.own_files():
            folder = _current[0].with_name(f"{_current[0].name}-{os.getpid()}")
            shutil.copytree(_current[0], folder, symlinks=True)
        writes.of_child(folder)
        _current[:] = [folder]


def delete_writes() -> None:
    """Before a process ends by `os._exit`: delete its folder, and its copy alone if it is such a child."""
    if _current:
        writes.hold(1)
        shutil.rmtree(_current[0], ignore_errors=True)
        with suppress(OSError):  # others' are in it
            _current[0].parent.rmdir()


def _of_program(save_dir: Path | None) -> list[Path]:
    """The folder that the program runs in, then what its arguments name."""
    named = [Path(argument.rpartition("=")[2]).absolute() for argument in sys.argv[1:] if "/" in argument]
    named = [path for path in named if save_dir is None or not path.is_relative_to(save_dir.absolute())]
    return [Path.cwd(), *named, *(path.parent for path in named if path.is_file())]


def _of_rank(save_dir: Path | None, place: RankPlace | None, rank: int) -> Path:
    if place is None:
        return Path(tempfile.mkdtemp(prefix=f"{FOLDER}-")) / "0" if save_dir is None else save_dir / FOLDER
    return place.folder / f"writes{rank}" if save_dir is None else rank_folder(save_dir, rank) / FOLDER


def _folder(save_dir: Path | None, place: RankPlace | None) -> OwnFolder:
    """An empty folder that no other process uses."""
    wanted = _of_rank(save_dir, place, place.rank if place is not None else 0)
    for number in count(1):
        own = OwnFolder(wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}"))
        path = own.take()
        if not own.is_another and (path / writes.LOCK).exists():  # an earlier run's
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        # Another process's folder is deleted with all that is in it: this one's lies beside it.
        if not own.is_another and not any(path.iterdir()):
            return own
        own.let_go()
    raise AssertionError  # the loop has no end


def _sentence(files: Sequence[Path], save_dir: Path | None, shown: Path) -> str:
    """Return a sentence on where they went; a folder of the results is named as the user named these."""
    number = "file" if len(files) == 1 else f"{len(files):,} files"
    if save_dir is None:
        where = "a folder that is deleted"
    else:
        common = Path(os.path.commonpath([path.parent for path in files]))
        kept = shown / common.relative_to(save_dir) if common.is_relative_to(save_dir) else common
        where = f"{kept}, not over yours"
    return f"Note: Nothing was computed, so the script's {number} went to {where}. {_IN_PLACE}"


def _finish_writes(own: OwnFolder, owner: int, *, is_kept: bool) -> None:
    """When the process ends: only the program's files are left, or nothing."""
    if os.getpid() != owner:
        return
    with writes.own_files(), suppress(OSError):
        if not is_kept and RankPlace.here() is None:
            shutil.rmtree(own.path.parent)
        elif writes.written(own.path):  # of a job's rank 0, other ranks may read them
            writes.tidy(own.path)
        else:
            shutil.rmtree(own.path)
        own.let_go()
