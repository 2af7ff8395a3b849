"""The first bad commit or version, for other programs."""

from __future__ import annotations

from typing import Any

from tracer.command_line import this_command
from tracer.exporters.json_documents.header import json_header
from tracer.exporters.json_documents.peak import diff_device
from tracer.results.bisection import Bisection

_VERSION = 1


def bisection_json(found: Bisection) -> dict[str, Any]:
    """Return the JSON of a bisection; docs/files.md describes its keys."""
    diff = found.diff
    return {
        **json_header("bisect", _VERSION, torch=None, command=this_command(), computed=False),
        "point": found.point,
        "first_bad": found.bad,
        "last_good": found.good,
        "unknown": list(found.unknown),
        "num_measured": found.num_measured,
        "num_points": found.num_points,
        "good_peak_bytes": found.good_peak.bytes,
        "bad_peak_bytes": None if found.bad_peak is None else found.bad_peak.bytes,
        "devices": [] if diff is None else [diff_device(diff)],
    }
