"""The difference of two peaks as JSON, for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tracer.analysis.peak_diff import PeakDiff, RowChange, SavedPeak
from tracer.analysis.snapshots.diff import DeviceDiff
from tracer.exporters.json_header import json_header

FORMAT, VERSION = "diff", 1


def peak_diff_json(diff: PeakDiff, *, before: str, after: str, exceeded: Sequence[str], command: str) -> str:
    """The difference of two runs; the changes of each list sum to `bytes`.

    Args:
        diff: What `diff_peaks` returned.
        before: Name of the first run.
        after: Name of the second one.
        exceeded: Why the threshold is exceeded, if it is.
        command: That made the document.
    """
    one = {
        "device": diff.after.device,
        "bytes": diff.bytes,
        "before": _side(diff.before),
        "after": _side(diff.after),
        "by_category": _changes(diff.by_category),
        "by_module": _changes(diff.by_module),
        "by_operator": _changes(diff.by_operator),
        "by_line": _changes(diff.by_line),
    }
    return _document([one], before, after, exceeded, command)


def snapshot_diff_json(
    diffs: Sequence[DeviceDiff], *, before: str, after: str, exceeded: Sequence[str], command: str
) -> str:
    """The difference of two snapshots, device by device; arguments as of `peak_diff_json`."""
    devices = [
        {
            "device": f"{diff.device}",
            "bytes": diff.bytes,
            "before": {"device": f"{diff.device}", "peak_bytes": diff.before_bytes, "phase": diff.before_phase or None},
            "after": {"device": f"{diff.device}", "peak_bytes": diff.after_bytes, "phase": diff.after_phase or None},
            "by_kind": [asdict(change) for change in diff.by_kind],
            "by_stack": [asdict(change) for change in diff.by_stack],
        }
        for diff in diffs
    ]
    return _document(devices, before, after, exceeded, command)


def _document(devices: list[dict[str, Any]], before: str, after: str, exceeded: Sequence[str], command: str) -> str:
    values = {
        **json_header(FORMAT, VERSION, torch=None, command=command),
        "before": before,
        "after": after,
        "exceeded": list(exceeded),
        "devices": devices,
    }
    return json.dumps(values, indent=2)


def _side(peak: SavedPeak) -> dict[str, Any]:
    return {"device": peak.device, "peak_bytes": peak.bytes, "phase": peak.phase}


def _changes(changes: Sequence[RowChange]) -> list[dict[str, Any]]:
    return [{**asdict(change), "name": list(change.name)} for change in changes]
