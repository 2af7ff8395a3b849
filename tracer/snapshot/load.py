"""The door to allocator snapshots: a path in, columns out.

A child process reads the file, so that no file can take this one down with it. Measured on a million entries: the
detour costs 0.1 s for the start of a bare interpreter and the pipe, and saves as much, because the child's millions of
objects vanish with it and this process imports numpy meanwhile.
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tracer.collector import paused_gc
from tracer.errors import SnapshotError
from tracer.snapshot.files import read_objects, why_no_file
from tracer.snapshot.reader import ONLY_OBJECTS, OUT_OF_MEMORY_STATUS, RawSnapshot, columns_of, read_raw

if TYPE_CHECKING:
    from tracer.snapshot.columns import Snapshot


def load_snapshot(path: Path, *, isolated: bool = True) -> Snapshot:
    """Load an allocator snapshot of torch 2.1 or newer: a pickle, packed or not.

    The file is read in a child process, because plain unpickling cannot be kept from taking all memory or all time by
    anything else (see `reader.limit_resources`). Nothing in the file is ever executed, in either process.

    Args:
        path: What `torch.cuda.memory._dump_snapshot` wrote, or a dump of `_snapshot()` or `memory_snapshot()`.
        isolated: False reads in this process, for a file that this process wrote itself.

    Raises:
        SnapshotError: The file is missing, truncated, of another kind, damaged or hostile.
    """
    if not path.is_file():
        raise SnapshotError(
            f"{path} {why_no_file(path)}.", hint="Name the file that torch.cuda.memory._dump_snapshot() wrote."
        )
    raw = read_isolated(path) if isolated else read_raw(path)
    return to_snapshot(raw, path)


def checked_objects(content: bytes) -> Any:
    """Return the objects of a pickled snapshot: read here once a process with limits has read them.

    Raises:
        SnapshotError: It is no pickle of plain objects, damaged or hostile.
    """
    with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(content)
        read_isolated(path, has_columns=False)
        with paused_gc():
            return read_objects(path)


def snapshot_in_memory(objects: dict[str, Any]) -> Snapshot:
    """The columns of what `torch.cuda.memory._snapshot()` returned in this process.

    Raises:
        SnapshotError: torch writes something that this version cannot read.
    """
    path = Path("the allocator's history")
    with paused_gc():
        return to_snapshot(columns_of(objects, path), path)


def to_snapshot(raw: RawSnapshot, path: Path) -> Snapshot:
    """Turn raw columns into a snapshot of numpy columns; the child process never imports numpy."""
    from tracer.snapshot.assemble import assemble

    return assemble(raw, path)


_PROJECT_ROOT = Path(__file__).resolve().parents[2]
_CHILD = """
import runpy, sys
sys.path.insert(0, {root!r})
runpy.run_module("tracer.snapshot.reader", run_name="__main__")
"""
_DAMAGED = "The file is damaged or hostile; take the snapshot again."


def read_isolated(path: Path, *, has_columns: bool = True) -> RawSnapshot:
    """Read a snapshot in a child process with limits of memory and processor time.

    Args:
        has_columns: False for a look at whether its objects can be read; then there are none.

    Raises:
        SnapshotError: The file is no snapshot that can be read, or reading it broke a limit.
    """
    command = [sys.executable, "-I", "-c", _CHILD.format(root=str(_PROJECT_ROOT)), str(path.resolve())]
    command += [] if has_columns else [ONLY_OBJECTS]
    with tempfile.TemporaryFile() as complaints:
        # The child may die of a signal; whatever it printed then is for a bug report, not for a person.
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints) as child:
            assert child.stdout is not None
            try:
                importlib.import_module("numpy")  # while the child reads
                raw = _receive(child.stdout)
            except BaseException:
                child.kill()
                raise
        if raw is None or child.returncode:
            complaints.seek(0)
            raise _failure(path, child.returncode, complaints.read(10_000).decode(errors="replace"))
        return raw


def _receive(pipe: IO[bytes]) -> RawSnapshot | None:
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    if "error" in head:
        raise SnapshotError(head["error"], hint=head["hint"])
    columns: dict[str, array[int]] = {}
    for name, typecode, length in head.pop("columns"):
        column = array(typecode, bytes(length * array(typecode).itemsize))
        if pipe.readinto(memoryview(column).cast("B")) != length * column.itemsize:  # type: ignore[attr-defined]
            return None
        columns[name] = column
    return RawSnapshot(columns=columns, **head)


def _failure(path: Path, status: int, complaint: str) -> Exception:
    if status == OUT_OF_MEMORY_STATUS:
        return SnapshotError(f"{path} asks for more memory than a snapshot of its size can need.", hint=_DAMAGED)
    if status == -getattr(signal, "SIGXCPU", signal.SIGTERM):
        return SnapshotError(f"{path} takes far longer to read than a snapshot of its size can need.", hint=_DAMAGED)
    if status < 0:
        return SnapshotError(f"Reading {path} was ended by signal {-status}.", hint=_DAMAGED)
    if "MemoryError" in complaint:
        return SnapshotError(f"{path} asks for more memory than this process may use.", hint=_DAMAGED)
    return RuntimeError(f"The reader of snapshots failed on {path} with status {status}:\n{complaint}")
