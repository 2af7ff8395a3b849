"""Two peaks compared, as JSON values for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracer.command_line import this_command
from tracer.exporters.json_documents.header import json_header

if TYPE_CHECKING:
    from tracer.analysis.peak_diff import PeakChange, PeakDiff

VERSION = 1


def peak_diffs_json(diffs: Sequence[PeakDiff], *, before: str, after: str) -> str:
    """Two peaks, device by device; the changes of each list sum to the change of the peak."""
    header = json_header("diff", VERSION, torch=None, command=this_command())
    devices = [_device(diff) for diff in diffs]
    return json.dumps({**header, "before": before, "after": after, "devices": devices}, indent=1)


def change_values(change: PeakChange, gathered_by: str) -> dict[str, Any]:
    """The name, and what it has on both sides."""
    name: dict[str, Any] = {"name": list(change.name)}
    if gathered_by in ("kind", "stack"):
        name = {"kind": change.name[0], "stack": list(change.name[1:])}
    counts = {"before_count": change.before_count, "after_count": change.after_count}
    own = dict(zip(("before_own_peak_bytes", "after_own_peak_bytes"), change.own_peaks or (), strict=False))
    return {**name, **_sizes(change.before_bytes, change.after_bytes), **counts, **own, "growth": change.growth}


def _device(diff: PeakDiff) -> dict[str, Any]:
    return {
        "device": diff.after.device,
        "before_phase": diff.before.phase,
        "after_phase": diff.after.phase,
        **_sizes(diff.before.bytes, diff.after.bytes),
        **{f"by_{name}": [change_values(change, name) for change in changes] for name, changes in diff.changes.items()},
    }


def _sizes(before: int, after: int) -> dict[str, int]:
    return {"before_bytes": before, "after_bytes": after, "bytes": after - before}
