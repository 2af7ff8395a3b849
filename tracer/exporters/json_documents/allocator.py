"""What the model of the caching allocator found, as values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tracer.allocator.reproduction import Reproduction
from tracer.analysis.snapshots.allocator_finding import AllocatorFinding
from tracer.analysis.snapshots.reserved import Reserved
from tracer.analysis.snapshots.what_if import SettingsOutcome, WhatIf


def allocator_values(found: AllocatorFinding) -> dict[str, Any]:
    """One device; the rows of each moment sum to its `reserved_bytes`."""
    modelled = found.modelled
    return {
        "settings": asdict(modelled.settings) if modelled is not None else None,
        "reproduced": _reproduced(modelled.reproduction) if modelled is not None else None,
        "agreement": list(found.agreement),
        "reserved_at_peak": _reserved(found.at_peak) if found.at_peak is not None else None,
        "reserved_at_end": _reserved(found.at_end),
        "what_if": _what_if(found.what_if) if found.what_if is not None else None,
        "first_changes": [asdict(change) for change in found.first.changes] if found.first is not None else None,
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


def _what_if(asked: WhatIf) -> dict[str, Any]:
    return {
        "gpu_memory_bytes": asked.gpu_memory,
        "runs": asked.runs if asked.gpu_memory is not None else None,
        "starts_clean": asked.starts_clean,
        "capacity_bytes": asked.capacity,
        "recorded_peak_bytes": asked.recorded_peak_bytes,
        "num_failed": asked.num_failed,
        "not_worth": list(asked.not_worth),
        "search_step_bytes": asked.step_bytes,
        "rows": [_row(row) for row in asked.rows],
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
