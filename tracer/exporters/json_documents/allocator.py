"""What the model of the caching allocator found, as values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tracer.allocator.reproduce import Reproduction
from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.reserved import Reserved
from tracer.analysis.snapshots.what_if import SettingsOutcome, WhatIf


def allocator_values(finding: AllocatorFinding) -> dict[str, Any]:
    """A device's allocator findings as JSON values; each moment's rows sum to its `reserved_bytes`."""
    modelled = finding.modelled
    return {
        "settings": asdict(modelled.settings) if modelled is not None else None,
        "reproduced": _reproduced(modelled.reproduction) if modelled is not None else None,
        "agreement": list(finding.agreement),
        "reserved_at_peak": _reserved(finding.at_peak) if finding.at_peak is not None else None,
        "reserved_at_end": _reserved(finding.at_end),
        "what_if": _what_if(finding.what_if) if finding.what_if is not None else None,
        "first_changes": [asdict(change) for change in finding.first.changes] if finding.first is not None else None,
    }


def _reproduced(reproduction: Reproduction) -> dict[str, Any]:
    kinds = ("addresses", "segments", "releases", "failures", "end_segments", "end_blocks")
    return {
        "is_exact": reproduction.is_exact,
        **{kind: asdict(getattr(reproduction, kind)) for kind in kinds},
        "recorded_peak_bytes": reproduction.recorded_peak_bytes,
        "peak_bytes": reproduction.peak_bytes,
        "first_difference": reproduction.first_difference,
        "given_up_at": reproduction.given_up_at,
        "num_retries": reproduction.num_retries,
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {
        "entry": reserved.entry,
        "reserved_bytes": reserved.bytes,
        "rows": [asdict(row) for row in reserved.rows],
        "held_free_by": [
            {**asdict(holder), "sites": [asdict(site) for site in holder.sites]} for holder in reserved.holders
        ],
    }


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    return {
        "gpu_memory_bytes": what_if.gpu_memory,
        "runs": what_if.runs if what_if.gpu_memory is not None else None,
        "starts_clean": what_if.starts_clean,
        "capacity_bytes": what_if.capacity,
        "recorded_peak_bytes": what_if.recorded_peak_bytes,
        "num_failed": what_if.num_failed,
        "not_worth": list(what_if.not_worth),
        "search_step_bytes": what_if.step_bytes,
        "rows": [_row(row) for row in what_if.rows],
    }


def _row(row: SettingsOutcome) -> dict[str, Any]:
    return {
        "settings": row.settings,
        **asdict(row.outcome),
        "saved_bytes": row.saved_bytes,
        "on_gpu": asdict(row.on_gpu) if row.on_gpu is not None else None,
        "smallest_gpu_bytes": row.smallest_gpu_bytes,
        "remarks": list(row.remarks),
    }
