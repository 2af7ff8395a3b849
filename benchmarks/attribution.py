"""How much of the peak is explained, per model, beside the share that torch's own timeline has a category for.

    uv run python -m benchmarks.attribution

Counted are the bytes above what was live before the recording. They are explained if they carry module and line, or
are inputs, gradients or optimizer state and named as such. The rows have to sum to the peak, and the peak to be the
allocator's count, to the byte.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from tests.training_steps import WORKLOADS, build_workload
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.findings import CycleFindings
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

NAMED = ("INPUT", "OPTIMIZER_STATE", "GRADIENT")


def explained(row: PeakRow) -> bool:
    return row.category in NAMED or (row.module is not None and row.line is not None)


def profile(name: str) -> CycleFindings:
    workload = build_workload(name)
    schedule = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
    model = workload.model
    if model is None:
        import torch

        model = torch.nn.Module()
    with ProfileSession(model, workload.optimizer, device="cpu", schedule=schedule) as session:
        for _ in range(schedule.num_steps):
            workload.step()
            session.step()
    return session.findings.worst


def shares(cycle: CycleFindings) -> tuple[int, int, int, int]:
    """Peak, bytes above what was there before, explained bytes of those, bytes of those with a category of torch's."""
    rows = [row for row in cycle.peak.rows if row.phase != "before recording"]
    above = sum(row.bytes for row in rows)
    ours = sum(row.bytes for row in rows if explained(row))
    torchs = sum(row.bytes for row in rows if row.torch_category is not None)
    return cycle.peak.peak_bytes, above, ours, torchs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=sorted(WORKLOADS), help="names from tests/training_steps.py")
    parser.add_argument("--rows", action="store_true", help="print what is not explained")
    arguments = parser.parse_args()
    print("| model | peak, bytes | rows and allocator | above the start | explained | torch has a category |")
    print("|---|---:|---|---:|---:|---:|")
    for name in arguments.models:
        cycle = profile(name)
        peak, above, ours, torchs = shares(cycle)
        equal = sum(row.bytes for row in cycle.peak.rows) == peak == cycle.peak.allocator_peak_bytes
        percent = [f"{100 * part / above:.2f} %" if above else "-" for part in (ours, torchs)]
        print(f"| {name} | {peak:,} | {'equal' if equal else 'DIFFER'} | {above:,} | {percent[0]} | {percent[1]} |")
        if arguments.rows:
            for row in cycle.peak.rows:
                if row.phase != "before recording" and not explained(row):
                    print("   ", row)


if __name__ == "__main__":
    main()
