"""peak.json, baselines of peaks by name, and two peaks compared, for other programs; peaks are read back for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.answers.answer import answer_values
from tracer.answers.rows import Row
from tracer.errors import SnapshotError
from tracer.exporters.json_documents.header import json_header
from tracer.units import MIB, NS_PER_US

if TYPE_CHECKING:
    from tracer.answers.difference import PeakChange, PeakDiff, SavedPeak
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.findings import GraphPool
    from tracer.answers.peak import Peak
    from tracer.answers.run_results import RunResults
    from tracer.exporters.document import Document

NAME, VERSION = "peak", 1
FORMAT = f"torch-timeline {NAME}"
MAX_STACKS, MAX_FRAMES = 200, 40  # Of the largest rows, and of each stack the innermost: less than 1 MB
MAX_BYTES = 256 * MIB  # Of a file to be read: a row has some 400 bytes, so this is half a million rows
_DAMAGED = "The file is damaged or of another program; profile the run again."


def peak_document(results: RunResults) -> dict[str, Any]:
    """The document for the cycle with the largest peak; docs/files.md describes its keys."""
    from tracer.answers.labels import stacks_of_rows  # reading peak.json back does not wait for torch

    findings, origin, failed, first = results.findings, results.origin, results.failed_allocation, results.first_changes
    assert findings is not None  # else it is not due
    worst, peak = findings.worst, findings.worst.peak
    stacks = stacks_of_rows(worst.source.recording, peak, num_rows=MAX_STACKS, num_frames=MAX_FRAMES)
    return {
        **json_header(NAME, VERSION, torch=origin.torch, computed=origin.computed),
        "command": origin.command,
        "answer": answer_values(results.answer),
        "device": peak.device,
        "peak_bytes": peak.peak_bytes,
        "allocator_peak_bytes": peak.allocator_peak_bytes,
        "unexplained_bytes": peak.unexplained_bytes,
        "counted": asdict(peak.counted),
        "reserved_bytes": peak.reserved_bytes,
        "cycle": findings.parts.index(worst),
        "time_us": peak.time_ns / NS_PER_US if origin.computed else None,
        "step": peak.step,
        "phase": peak.phase,
        "allocator": asdict(peak.allocator) if peak.allocator is not None else None,
        "threads_not_recorded": list(peak.threads),
        "failure": None if failed is None else _failure(failed, peak),
        "first_changes": None if first is None else [asdict(change) for change in first.changes],
        "values_read": None if results.values_read is None else asdict(results.values_read),
        "cuda_graphs": list(map(_graph_pool, findings.graph_pools)),
        "beside_torch": None if results.beside is None else asdict(results.beside),
        "pinned_bytes": results.history.pinned_bytes,
        "rows": [{**row.values(), "stack": stack} for row, stack in zip(peak.rows, stacks, strict=True)],
    }


def _graph_pool(pool: GraphPool) -> dict[str, Any]:
    return {**asdict(replace(pool, rows=())), "rows": [row.values() for row in pool.rows]}


def _failure(failed: FailedAllocation, peak: Peak) -> dict[str, Any]:
    """Why memory ran out; `rows` are what was in use then, null where that is the peak or was not recorded."""
    from tracer.exporters.json_documents.snapshot import oom_values

    is_peak, in_use = failed.is_at(peak), failed.in_use
    rows = None if is_peak or in_use is None else [row.values() for row in in_use.rows]
    return {**oom_values(failed.event), "is_peak": is_peak, "rows": rows}


def saved_peak_document(peak: SavedPeak) -> dict[str, object]:
    """Return the part of a peak.json that a comparison reads back."""
    rows = [row.values() | {"op": row.made_by} for row in peak.rows]
    return {"device": peak.device, "peak_bytes": peak.bytes, "phase": peak.phase, "rows": rows}


def read_peak_json(path: Path) -> SavedPeak:
    """Read a peak.json of this or an earlier version: rows may lack what came later, or have more."""
    from tracer.exporters.document import Source, read_document

    source = Source(str(path), SnapshotError, _DAMAGED)
    return saved_peak_from(read_document(path, source, at_most=MAX_BYTES, hint="Check the path and its permissions."))


def saved_peak_from(document: Document) -> SavedPeak:
    """The peak in a document that may be anybody's.

    Raises:
        TracerError: It is no peak.json or a later version's, or its rows do not sum to its peak.
    """
    from tracer.answers.difference import SavedPeak

    if "format" in document or "version" in document:  # files from before there was a version have neither
        document.check_format(FORMAT, VERSION, "a peak.json of this program")
    saved = SavedPeak(
        rows=document.read("rows", tuple[Row, ...]),
        bytes=document.read("peak_bytes", int),
        device=document.read("device", str),
        phase=document.read("phase", str | None),
    )
    _check_sum(document, saved.rows, saved.bytes)
    return saved


def _check_sum(document: Document, rows: Sequence[Row], peak_bytes: int) -> None:
    if (total := sum(row.bytes for row in rows)) != peak_bytes:
        raise document.refusal(f": its rows sum to {total:,} B, its peak is {peak_bytes:,} B.")


_BASELINE_VERSION = 1
_BASELINE_FORMAT = "torch-timeline baseline"
_BASELINE_HINT = "Name the file that --update wrote, or another one to be written."
_NO_BASELINE = "Write it first, with --update, or --gpu-memory-update in pytest; or name another file."


def as_in_checkout(peak: SavedPeak, folder: Path) -> SavedPeak:
    """Return the peak with each file named from its repository's root, or from a folder outside of a repository."""
    from tracer.capture.sources.source_files import path_in_checkout

    name = str(folder.absolute())
    rows = (replace(row, file=path_in_checkout(row.file, name)) if row.file else row for row in peak.rows)
    return replace(peak, rows=tuple(rows))


def write_baseline(peaks: Mapping[str, SavedPeak], path: Path) -> None:
    """Write it, in an order that versions of it can be compared line by line."""
    from tracer.exporters.files import write_json  # whoever reads a peak or compares two needs none of that

    named = {name: _baseline_peak(peaks[name]) for name in sorted(peaks)}
    document = {"format": _BASELINE_FORMAT, "version": _BASELINE_VERSION, "peaks": named}
    write_json(path, document)


def read_baseline(path: Path) -> dict[str, SavedPeak]:
    """Read the peaks of a baseline file, by name."""
    from tracer.answers.difference import SavedPeak
    from tracer.exporters.document import Source, read_document

    document = read_document(path, Source(str(path), SnapshotError, _BASELINE_HINT), hint=_NO_BASELINE)
    document.check_format(_BASELINE_FORMAT, _BASELINE_VERSION, "a baseline of peaks")
    found = {}
    for name, peak in document.read("peaks", dict[str, _BaselinePeak]).items():
        rows = tuple(Row(**asdict(row), torch_category=None, evidence="", phase="") for row in peak.rows)
        _check_sum(document, rows, peak.peak_bytes)
        found[name] = SavedPeak(rows=rows, bytes=peak.peak_bytes, device=peak.device, phase=peak.phase)
    return found


@dataclass(frozen=True, slots=True)
class _BaselineRow:
    """The part of a row that a comparison reads; rows that are alike in it are one."""

    bytes: int
    count: int
    category: str
    module: str | None = None
    op: str | None = None
    file: str | None = None
    line: int | None = None
    name: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    is_compiled: bool = False


@dataclass(frozen=True, slots=True)
class _BaselinePeak:
    """A peak of a baseline file."""

    device: str
    peak_bytes: int
    rows: tuple[_BaselineRow, ...]
    phase: str | None = None


def _baseline_peak(peak: SavedPeak) -> dict[str, object]:
    """A peak without what no comparison reads, and without values that are a row's default."""
    sums: dict[_BaselineRow, list[int]] = {}
    names = [field.name for field in fields(_BaselineRow)]
    for row in peak.rows:
        alike = _BaselineRow(
            **{name: getattr(row, name) for name in names} | {"bytes": 0, "count": 0, "op": row.made_by}
        )
        total = sums.setdefault(alike, [0, 0])
        total[0] += row.bytes
        total[1] += row.count
    alike_rows = (asdict(replace(row, bytes=size, count=count)) for row, (size, count) in sums.items())
    rows = [{name: value for name, value in row.items() if value not in (None, False)} for row in alike_rows]
    return {"device": peak.device, "peak_bytes": peak.bytes, "phase": peak.phase, "rows": rows}


_DIFF_VERSION = 1


def peak_diffs_json(diffs: Sequence[PeakDiff], *, before: str, after: str) -> dict[str, Any]:
    """Two peaks, device by device; the changes of each list sum to the change of the peak."""
    from tracer.exporters.diff import answer_of_diffs

    devices = [
        {
            "device": diff.after.device,
            "before_phase": diff.before.phase,
            "after_phase": diff.after.phase,
            **_diff_sizes(diff.before.bytes, diff.after.bytes),
            **{f"by_{name}": [_change(change, name) for change in changes] for name, changes in diff.changes.items()},
        }
        for diff in diffs
    ]
    answer = answer_values(answer_of_diffs(diffs, before=before, after=after))
    sides = {"answer": answer, "before": before, "after": after}
    return {**json_header("diff", _DIFF_VERSION), **sides, "devices": devices}


def _change(change: PeakChange, gathered_by: str) -> dict[str, Any]:
    name: dict[str, Any] = {"name": list(change.name)}
    if gathered_by in ("kind", "stack"):
        name = {"kind": change.name[0], "stack": list(change.name[1:])}
    counts = {"before_count": change.before_count, "after_count": change.after_count}
    own = dict(zip(("before_own_peak_bytes", "after_own_peak_bytes"), change.own_peaks or (), strict=False))
    return {**name, **_diff_sizes(change.before_bytes, change.after_bytes), **counts, **own, "growth": change.growth}


def _diff_sizes(before: int, after: int) -> dict[str, int]:
    return {"before_bytes": before, "after_bytes": after, "bytes": after - before}
