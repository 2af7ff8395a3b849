"""peak.json: the rows of the peak, for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracer.analysis.peak import PeakReport
from tracer.exporters.files import write_atomically
from tracer.units import NS_PER_US


def peak_document(peaks: Sequence[PeakReport]) -> dict[str, Any]:
    """The document for the cycle with the largest peak.

    Args:
        peaks: One report per cycle, at least one.
    """
    cycle = max(range(len(peaks)), key=lambda index: (peaks[index].peak_bytes, peaks[index].allocator is not None))
    peak = peaks[cycle]
    return {
        "device": peak.device,
        "peak_bytes": peak.peak_bytes,
        "allocator_peak_bytes": peak.allocator_peak_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "cycle": cycle,
        "time_us": peak.time_ns / NS_PER_US,
        "step": peak.step,
        "phase": peak.phase,
        "allocator": asdict(peak.allocator) if peak.allocator is not None else None,
        "rows": [asdict(row) for row in peak.rows],
    }


def write_peak_json(peaks: Sequence[PeakReport], path: Path) -> None:
    """Write peak.json."""
    write_atomically(path, json.dumps(peak_document(peaks), indent=1) + "\n")
