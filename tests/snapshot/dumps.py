"""Small snapshots for tests, in the layout that torch writes, and an independent replay to check against."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]

REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "realdata"
RECORDINGS = REAL_DATA.parent / "recordings"
_NOT_READ = ("old_history_format", "gen_snapshot")  # Of torch 2.0; the program that made some of the others
REAL_FILES = sorted(
    path for folder in (REAL_DATA, RECORDINGS) for path in folder.glob("*.p*") if path.stem not in _NOT_READ
)
# One of each kind, and small: a full expandable card, no times, a list of segments, no history, Windows, a forward.
_QUICK = (
    "oom_expandable_3gpus",
    "four_gpus_no_time_us",
    "list_form",
    "segments_only",
    "python_stacks_windows",
    "forward_bf16",
)
each_real_file = pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in _QUICK else pytest.mark.slow) for path in REAL_FILES]
    or [pytest.param(REAL_DATA, marks=pytest.mark.skip("the real recordings are not here"))],
)
LIVE_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free")


def frame(name: str, file: str = "/home/me/train.py", line: int = 10) -> Row:
    return {"name": name, "filename": file, "line": line}


def entry(action: str, addr: int, size: int, *, time_us: int | None = 1, frames: list[Row] | None = None) -> Row:
    row: Row = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames or []}
    if time_us is not None:
        row["time_us"] = time_us
    return row


def freed(addr: int, size: int, *, time_us: int | None = 1, frames: list[Row] | None = None) -> list[Row]:
    actions = ("free_requested", "free_completed")
    return [entry(action, addr, size, time_us=time_us, frames=frames) for action in actions]


def block(addr: int, requested: int, *, state: str = "active_allocated", frames: list[Row] | None = None) -> Row:
    size = max(512, -(-requested // 512) * 512)
    return {"address": addr, "size": size, "requested_size": requested, "state": state, "frames": frames or []}


def segment(address: int, total: int, blocks: list[Row], *, device: int = 0, expandable: bool = False) -> Row:
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "frames": [],
        "blocks": blocks,
    }


def snapshot(trace: list[Row], segments: list[Row] | None = None, **more: Any) -> dict[str, Any]:
    return {"segments": segments or [], "device_traces": [trace], **more}


def write(path: Path, objects: Any, *, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(objects, protocol=protocol))
    return path


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name}")


def read_plain(path: Path) -> Any:
    with path.open("rb") as file:
        return _PlainUnpickler(file).load()


def naive_peaks(objects: Any) -> dict[int, int]:
    """Peak of requested bytes per device, by walking each trace backwards over plain dicts, one entry at a time.

    Written without a look at the product's replay, and as plainly as possible; it is the oracle of the tests.
    """
    if isinstance(objects, list):
        objects = {"segments": objects, "device_traces": []}
    traces = dict(enumerate(objects.get("device_traces", [])))
    devices = {device for device, trace in traces.items() if trace} | {s["device"] for s in objects["segments"]}
    return {device: _naive_peak(device, traces.get(device, []), objects["segments"]) for device in devices}


def _naive_peak(device: int, trace: list[Row], segments: list[Row]) -> int:
    live: dict[int, int] = {}
    for seg in segments:
        for piece in seg["blocks"]:
            if seg["device"] == device and piece["state"] in LIVE_STATES:
                live[piece["address"]] = piece["requested_size"]
    in_use = peak = sum(live.values())
    for row in reversed(trace):
        if row["action"] == "alloc":
            in_use -= live.pop(row["addr"], 0)
        elif row["action"] == "free_completed":
            in_use -= live.get(row["addr"], 0)
            live[row["addr"]] = row["size"]
            in_use += row["size"]
        peak = max(peak, in_use)
    return peak
