"""What a file of trace events has to be: a strict reader, written from the format's description alone.

Perfetto's own trace processor would be the better judge. The Python package `perfetto` fetches it from a host that is
out of reach of this project's machines, so this stands in for it.

Source:
    "Trace Event Format" of the Chromium project, the sections on the event types used here.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

_METADATA = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
_NEEDED = {"X": {"dur", "tid"}, "i": {"s"}, "C": {"args"}, "M": {"args"}, "s": {"id", "tid"}, "f": {"id", "tid"}}


def read_trace(path: Path) -> dict[str, Any]:
    """The file's JSON, numbers with a point as exact fractions. Fails on anything outside the format."""
    text = gzip.decompress(path.read_bytes()).decode()
    trace = json.loads(text, parse_float=Fraction, parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    assert isinstance(trace, dict)
    for event in trace["traceEvents"]:
        _check(event)
    return trace


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _check(event: dict[str, Any]) -> None:
    kind = event["ph"]
    assert kind in _NEEDED, event
    assert {"name", "pid", *_NEEDED[kind]} <= event.keys(), event
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int | str)
    assert isinstance(event.get("tid", 0), int | str)
    assert isinstance(event.get("cat", ""), str)
    if kind != "M":
        assert _is_number(event["ts"]), event
        assert event["ts"] >= 0
    if kind == "X":
        assert _is_number(event["dur"])
        assert event["dur"] >= 0
    elif kind == "i":
        assert event["s"] in ("g", "p", "t")
    elif kind == "C":
        assert event["args"]
        assert all(_is_number(value) for value in event["args"].values())
    elif kind == "M":
        assert _METADATA[event["name"]] in event["args"]


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one lane lie inside each other or beside each other, as viewers take for granted."""
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for lane in lanes.values():
        open_until: list[Fraction] = []
        for start, minus_length in sorted(lane):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - minus_length <= open_until[-1]
            open_until.append(start - minus_length)
