"""Two peaks compared, as JSON values for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracer.exporters.json_documents.header import json_header, this_command

if TYPE_CHECKING:
    from tracer.analysis.peak_diff import PeakDiff, RowChange
    from tracer.analysis.snapshots.diff import Change, DeviceDiff

VERSION = 1


def peak_diff_json(diff: PeakDiff, *, before: str, after: str) -> str:
    """Two runs' peaks; the changes of each list sum to the change of the peak."""
    lists = {name: getattr(diff, name) for name in ("by_category", "by_module", "by_operator", "by_line")}
    device = {
        "device": diff.after.device,
        "before_phase": diff.before.phase,
        "after_phase": diff.after.phase,
        **_sizes(diff.before.bytes, diff.after.bytes),
        **{name: [_row(change) for change in changes] for name, changes in lists.items()},
    }
    return _text(before, after, [device])


def snapshot_diff_json(devices: Sequence[DeviceDiff], *, before: str, after: str) -> str:
    """Two snapshots' peaks, device by device."""
    return _text(before, after, [_device(one) for one in devices])


def _device(one: DeviceDiff) -> dict[str, Any]:
    return {
        "device": f"device {one.device}",
        "before_phase": one.before_phase or None,
        "after_phase": one.after_phase or None,
        **_sizes(one.before_bytes, one.after_bytes),
        "by_kind": [_change(change) for change in one.by_kind],
        "by_stack": [_change(change) for change in one.by_stack],
    }


def _text(before: str, after: str, devices: Sequence[Mapping[str, Any]]) -> str:
    header = json_header("diff", VERSION, torch=None, command=this_command())
    return json.dumps({**header, "before": before, "after": after, "devices": devices}, indent=1)


def _sizes(before: int, after: int) -> dict[str, int]:
    return {"before_bytes": before, "after_bytes": after, "bytes": after - before}


def _row(change: RowChange) -> dict[str, Any]:
    counts = {"before_count": change.before_count, "after_count": change.after_count}
    return {"name": list(change.name), **_sizes(change.before_bytes, change.after_bytes), **counts}


def _change(change: Change) -> dict[str, Any]:
    counts = {"before_count": change.before_count, "after_count": change.after_count}
    sizes = _sizes(change.before_bytes, change.after_bytes)
    return {"kind": change.kind, "stack": list(change.stack), **sizes, **counts}
