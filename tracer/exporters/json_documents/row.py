"""A row of the peak as a JSON object: in peak.json, and in the page."""

from __future__ import annotations

from typing import TypedDict

from tracer.analysis.peak_row import PeakRow


class RowJson(TypedDict):
    """The fields of `PeakRow`, in their order; docs/files.md describes them."""

    bytes: int
    count: int
    category: str
    torch_category: str | None
    evidence: str
    phase: str
    module: str | None
    op: str | None
    file: str | None
    line: int | None
    name: str | None
    step: str | None
    caller_file: str | None
    caller_line: int | None
    fused_with: str | None
    is_compiled: bool
    requested_bytes: int | None
    shape: list[int] | None
    dtype: str | None


def row_json(row: PeakRow) -> RowJson:
    """One row."""
    return {
        "bytes": row.bytes,
        "count": row.count,
        "category": row.category,
        "torch_category": row.torch_category,
        "evidence": row.evidence,
        "phase": row.phase,
        "module": row.module,
        "op": row.op,
        "file": row.file,
        "line": row.line,
        "name": row.name,
        "step": row.step,
        "caller_file": row.caller_file,
        "caller_line": row.caller_line,
        "fused_with": row.fused_with,
        "is_compiled": row.is_compiled,
        "requested_bytes": row.requested_bytes,
        "shape": list(row.shape) if row.shape is not None else None,
        "dtype": row.dtype,
    }
