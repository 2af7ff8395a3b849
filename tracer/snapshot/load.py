"""The door to allocator snapshots: a path in, columns out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.collector import paused_gc
from tracer.errors import SnapshotError
from tracer.snapshot.containers import why_no_file
from tracer.snapshot.reader import RawSnapshot, columns_of, read_raw
from tracer.snapshot.sandbox import read_isolated

if TYPE_CHECKING:
    from tracer.snapshot.columns import Snapshot


def load_snapshot(path: Path, *, isolated: bool = True) -> Snapshot:
    """Load an allocator snapshot of any age: pickle or JSON, packed or not.

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
