"""Reads the recordings of a whole job, several at a time: here, or where a Dask cluster has workers."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import fields
from glob import glob
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tracer.answers.files import RANK_JSON, RANKS_JSON, SNAPSHOT
from tracer.answers.ranks import RankPeak, rank_of, rank_peak
from tracer.errors import MissingPackageError, SnapshotError, TracerError, first_line
from tracer.snapshot.load import load_snapshot

SUFFIXES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz", ".json")
BYTES_PER_FILE_BYTE, BYTES_PER_PACKED_BYTE = 8, 80
"""Most memory taken for reading a file, beside what every process needs. A synthetic recording of a million entries
took 4.3 bytes for each of its own, and 28 packed by gzip; real ones pack better than its random stacks do."""
CONNECT_S = 10.0
"""Longest time that a Dask scheduler may take to answer."""
Reader = Callable[[str, int | None], RankPeak]
_PROCESS_BYTES = 150 << 20
_SHARE_OF_MEMORY = 0.5


def recordings(paths: Iterable[Path]) -> list[Path]:
    """The recordings that some files, folders and patterns name, each once, in order.

    Of a folder these are the snapshots in it and below it. Of one that has a `memory_snapshot.pkl` it is that alone: it
    is a rank's, with the other files of a run beside it.
    """
    files: dict[Path, None] = {}
    for path in paths:
        inside = list(_inside(path))
        if not inside:
            raise SnapshotError(
                f"{path} has no recording.", hint="Name files of torch.cuda.memory._dump_snapshot(), or their folder."
            )
        files |= dict.fromkeys(inside)
    return list(files)


def _inside(path: Path) -> Iterator[Path]:
    if path.is_dir():
        try:
            files = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
        except OSError as error:  # it went, or cannot be read
            reason = error.strerror or str(error)
            raise SnapshotError(
                f"Cannot read the folder {path}: {reason}.", hint="Look whether it is there."
            ) from error
        of_ranks = {file.parent for file in files if file.name == SNAPSHOT.file_name}
        for file in files:
            is_other_answer = file.parent in of_ranks and file.name != SNAPSHOT.file_name
            if not is_other_answer and file.name not in (RANK_JSON, RANKS_JSON):
                yield file
    elif path.exists():
        yield path
    elif any(letter in str(path) for letter in "*?["):
        yield from sorted(Path(file) for file in glob(str(path), recursive=True) if Path(file).is_file())  # noqa: PTH207
    else:
        raise SnapshotError(f"{path} does not exist.", hint="Name a recording, a folder of them, or a pattern.")


def read_rank(file: str, device: int | None) -> RankPeak:
    """A rank's peak, read from its recording; if that cannot be read, the rank says why."""
    try:
        return rank_peak(load_snapshot(Path(file)), file, device=device)
    except SnapshotError as error:
        return RankPeak(file, rank_of(file), problem=str(error))
    except OSError as error:
        return RankPeak(file, rank_of(file), problem=f"Cannot read {file}: {error.strerror or error}.")
    except MemoryError:
        return RankPeak(file, rank_of(file), problem="There is not enough memory to read it.")
    finally:
        # What was replayed refers to itself, in few objects with large arrays: the collector would let them pile up.
        gc.collect()


def read_job(
    files: Sequence[Path], *, device: int | None = None, dask: str | None = None, read: Reader = read_rank
) -> list[RankPeak]:
    """Read all ranks.

    Args:
        files: Recordings. Of a Dask cluster the workers have to see them under the same paths.
        dask: Address of a Dask scheduler; without one the processes are this machine's.
    """
    # Addresses of files are relative to this process's folder, which a worker elsewhere need not have.
    left = [str(path.absolute()) if dask is not None else str(path) for path in files]
    at_once = num_processes_for(files)
    peaks: list[RankPeak] = []
    is_first = True
    while left:
        broken: set[str] = set()
        with _executor(dask, at_once) as executor:
            futures: dict[Any, str] = {executor.submit(read, name, device): name for name in left}
            for future in as_completed(futures):
                name = futures[future]
                try:
                    peaks.append(future.result())
                except BrokenExecutor:
                    broken.add(name)
                except Exception as error:  # a worker of a cluster that died, or a fault in reading
                    peaks.append(
                        RankPeak(name, rank_of(name), problem=f"Its reader ended: {type(error).__name__}: {error}")
                    )
        left = [name for name in left if name in broken]
        # A process that dies takes its pool along, and all who wait there. A single one reads in order: the first
        # without an answer is the one that it died of.
        if left and not is_first:
            culprit = left.pop(0)
            peaks.append(RankPeak(culprit, rank_of(culprit), problem="The process that read it has died."))
        dask, at_once, is_first = None, 1, False
    return peaks


def num_processes_for(files: Sequence[Path]) -> int:
    """Number of processes: limited by cores, files, and memory for the largest file."""
    needed_bytes = [0]
    for path in files:
        with suppress(OSError):  # its reader says why
            is_packed = path.suffix == ".gz"
            needed_bytes.append(path.stat().st_size * (BYTES_PER_PACKED_BYTE if is_packed else BYTES_PER_FILE_BYTE))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_once = int(_SHARE_OF_MEMORY * _free_bytes() // (_PROCESS_BYTES + max(needed_bytes)))
    return max(1, min(cores, len(files), at_once))


def _free_bytes() -> int:
    """Memory that can be had without swapping; 4 GiB where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 4 << 30


@contextmanager
def _executor(dask: str | None, num_processes: int) -> Iterator[Executor]:
    """An executor that reads recordings: processes of this machine, or a Dask cluster's workers."""
    if dask is None:
        # A fresh interpreter for each: what this process has loaded is not paid for again by every copy of it.
        with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
            yield pool
        return
    try:
        client_of: Any = import_module("distributed").Client
    except ImportError:
        raise MissingPackageError(
            "--dask needs Dask's distributed, which is not installed.", hint="Install the extra `cluster`."
        ) from None
    try:
        client = client_of(dask, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise TracerError(
            f"The Dask scheduler at {dask} cannot be reached: {error or type(error).__name__}.",
            hint="Name the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786.",
        ) from error
    with client:
        executor: Executor = client.get_executor(pure=False)
        _check_cluster(executor, dask)
        yield executor


def answer_of() -> tuple[str, ...]:
    """Return the fields of a rank's answer where it is called: another version of this program may have others."""
    return tuple(field.name for field in fields(RankPeak))


def _check_cluster(executor: Executor, address: str) -> None:
    """Check that the workers have the same version of this program: else each rank would fail by itself."""
    hint = "Install this version of it where the cluster's scheduler and workers run."
    try:
        answer = executor.submit(answer_of).result()
    except Exception as error:
        reason = first_line(error)
        raise TracerError(f"The workers at {address} cannot import torch-timeline: {reason}", hint=hint) from error
    if answer != answer_of():
        raise TracerError(f"The workers at {address} have another version of torch-timeline.", hint=hint)
