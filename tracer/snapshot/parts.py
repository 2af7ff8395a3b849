"""The top level of a snapshot: which of its parts is where, however it was wrapped, and the allocator's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tracer.errors import SnapshotError
from tracer.snapshot.files import HOW_TO_RECORD
from tracer.snapshot.remarks import Remarks

# More than any machine has; a list that is longer is no list of devices.
MAX_DEVICES: Final = 4096
_SPELLED_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
_SCALAR_SETTINGS = {
    _SPELLED_SETTINGS: str,
    "expandable_segments": bool,
    "max_split_size": int,
    "garbage_collection_threshold": float,
    "graph_capture_record_stream_reuse": bool,
}


def snapshot_parts(objects: Any, path: Path, remarks: Remarks) -> dict[str, Any]:
    """The top level of the snapshot; the bare list of `torch.cuda.memory_snapshot()` has only segments."""
    if (other := _other_document(objects)) is not None:
        format_name, hint = other
        raise SnapshotError(f"{path} is {format_name}, not an allocator snapshot.", hint=hint)
    if type(objects) in (list, tuple):
        return {"segments": objects, "device_traces": []}
    parts = _unwrapped(objects, remarks)
    if parts is None:
        raise SnapshotError(f"{path} holds other data than an allocator snapshot.", hint=HOW_TO_RECORD)
    traces = parts.get("device_traces") or []
    if type(traces) not in (list, tuple) or len(traces) > MAX_DEVICES:
        raise SnapshotError(f"{path} has device_traces that are no list of devices.", hint="The file is damaged.")
    for device, trace in enumerate(traces):
        if trace is None:
            remarks.add("A device has no list of entries and counts as one without history", f"device {device}", trace)
    return {**parts, "segments": parts.get("segments") or [], "device_traces": traces}


def _other_document(objects: Any) -> tuple[str, str] | None:
    """What else a file may be that people take for a snapshot, and what to do then; None for all others."""
    if type(objects) is dict and "traceEvents" in objects:
        return "a profiler trace", "The command `trace` explains it."
    if type(objects) is dict and str(objects.get("format", "")).startswith("torch-timeline "):
        return "an answer of this program", "Name the memory_snapshot.pkl beside it, or compare two folders by `diff`."
    # `export_memory_timeline` writes [times, sizes] to .json and rows of time, action, size and category to .raw.json.
    is_list = type(objects) is list and len(objects) > 0 and type(objects[0]) is list
    if is_list and len(objects[0]) > 0 and type(objects[0][0]) in (int, float):
        return "torch's memory timeline", HOW_TO_RECORD
    return None


def _unwrapped(objects: Any, remarks: Remarks) -> dict[str, Any] | None:
    """The snapshot itself, which people put into a dict of their own beside a rank or a step."""
    if _is_snapshot(objects):
        return dict(objects)
    if type(objects) is not dict:
        return None
    inner = [(key, value) for key, value in objects.items() if _is_snapshot(value)]
    if len(inner) != 1:
        return None
    key, content = inner[0]
    remarks.add("The snapshot lies inside another dict", "under the key", key)
    return dict(content)


def _is_snapshot(value: Any) -> bool:
    return type(value) is dict and ("segments" in value or "device_traces" in value)


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings that an explanation uses; all others are ignored."""
    if type(settings) is not dict:
        return {}
    options: dict[str, Any] = {}
    for key, kind in _SCALAR_SETTINGS.items():
        if type(settings.get(key)) is kind:
            options[key] = settings[key]
    if len(options.get(_SPELLED_SETTINGS, "")) > 1000:
        del options[_SPELLED_SETTINGS]
    divisions = settings.get("roundup_power2_divisions")
    if type(divisions) is dict:
        options["roundup_power2_divisions"] = {
            key: value
            for key, value in list(divisions.items())[:64]
            if type(key) is str and len(key) < 20 and type(value) is int and 0 <= value <= 1 << 30
        }
    return options
