"""A loaded snapshot, replayed and explained at once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracer.answers.findings import SnapshotFindings
from tracer.answers.snapshot_findings import ReplayedSnapshot, explain_replayed, replay_snapshot
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import Replay


@cache
def real_replayed(path: Path) -> ReplayedSnapshot:
    """A real recording, which several files of tests look at, is read and replayed once."""
    return replay_snapshot(load_snapshot(path, isolated=False))


def explain_snapshot(snapshot: Snapshot, *, device: int | None = None) -> SnapshotFindings:
    return explain_replayed(replay_snapshot(snapshot, device=device))


def allocated_after(replay: Replay, entry: int) -> int:
    """Rounded bytes in use right after an entry."""
    return int(replay.lives.allocated_bytes[replay.lives.alive_after(entry)].sum())
