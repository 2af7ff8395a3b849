"""Traces from elsewhere: read or refused, whether rows sum to the allocator's count, and who launched what.

python -m benchmarks.trace_files FILE...

Launches are compared where a kernel names its operator by number and its driver's call is in the trace: the operator
around that call, which is what is taken where there is no number, has to be the same one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tracer.capture.recording import Ops
from tracer.errors import TracerError
from tracer.results.trace_report import TraceReport, explain_trace
from tracer.trace import recording
from tracer.trace.device_work import DeviceWork, device_work, names_operators, operators_of_calls
from tracer.trace.tables import TraceTables

_compared = {"agree": 0, "not known": 0, "differ": 0}


def main() -> None:
    """Print a line for each file, and the launches of all."""
    recording.device_work = _comparing  # type: ignore[attr-defined]
    num_read = 0
    for name in sys.argv[1:]:
        try:
            print(f"{Path(name).name}: {_said(explain_trace(Path(name)))}")
            num_read += 1
        except TracerError as error:
            print(f"{Path(name).name}: refused: {str(error).rpartition(': ')[2]}")
    print(f"{num_read:,} of {len(sys.argv) - 1:,} files read; launches by number and by call: {_compared}")


def _said(report: TraceReport) -> str:
    words = []
    if report.results is not None and report.results.findings is not None:
        peak = report.results.findings.worst.peak
        rest = peak.allocator_peak_bytes - peak.unexplained_bytes - sum(row.bytes for row in peak.rows)
        words.append(f"peak {peak.allocator_peak_bytes:,} bytes on {peak.device}, off by {rest:,}")
    if report.times is not None:
        total = report.times.total
        work = sum(row.count for row in report.times.rows)
        alone = sum(row.count for row in report.times.rows if row.launcher.op is None)
        words.append(f"{total.wall_ns / 1e6:,.1f} ms, {total.compute_ns / 1e6:,.1f} computing")
        words.append(f"{work - alone:,} of {work:,} launches have an operator")
    return "; ".join(words) or "neither memory nor a device"


def _comparing(tables: TraceTables, thread_of: dict[int, int], base_ns: int, ops: Ops) -> DeviceWork:
    """The same, and by call what is known by number."""
    found = device_work(tables, thread_of, base_ns, ops)
    calls = tables.calls
    rows = {number: row for row, number in enumerate(calls["correlation"].tolist()) if number > 0}
    work = tables.work[np.argsort(tables.work["start_ns"], kind="stable")]
    call = np.array([rows.get(number, -1) for number in work["correlation"].tolist()], np.int64)
    by_number_alone = names_operators(work) & np.isin(work["external_id"], tables.operators["external_id"])
    known = (call >= 0) & (found.operator_ns >= 0) & by_number_alone
    call = call[known]
    threads = np.array([thread_of.get(thread, -1) for thread in calls["thread"][call].tolist()], np.int64)
    start_ns = calls["start_ns"][call] + base_ns
    end_ns = start_ns + calls["duration_ns"][call]
    by_number = ops.running_at(found.thread[known], found.operator_ns[known])
    by_call = operators_of_calls(ops, threads, start_ns, end_ns)
    _compared["agree"] += int((by_number == by_call).sum())
    _compared["not known"] += int(((by_call < 0) & (by_number >= 0)).sum())
    _compared["differ"] += int(((by_call >= 0) & (by_number != by_call)).sum())
    return found


if __name__ == "__main__":
    main()
