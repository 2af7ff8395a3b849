"""Reading a trace beside HTA and Perfetto's trace_processor: time and memory, in processes of their own, one file.

python -m benchmarks.trace [--events 5000000] [--hta PYTHON] [--perfetto PYTHON]

The two options name interpreters with HolisticTraceAnalysis and with perfetto. Ours answers all that `trace` says; HTA
parses, and gives its temporal breakdown; trace_processor parses, and counts slices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.synthetic_trace import write_trace

_OURS = """
import json, sys
from pathlib import Path
from tracer.results.trace_report import explain_trace
report = explain_trace(Path(sys.argv[1]))
total = report.times.total
print(json.dumps({"peak_bytes": report.results.findings.worst.peak.peak_bytes, "compute_us": total.compute_ns / 1000}))
"""
_HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
print(json.dumps({"compute_us": float(row["compute_time(us)"])}))
"""
_PERFETTO = """
import json, sys
from perfetto.trace_processor import TraceProcessor
processor = TraceProcessor(trace=sys.argv[1])
print(json.dumps({"slices": next(iter(processor.query("select count(*) as n from slice"))).n}))
"""


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--hta")
    parser.add_argument("--perfetto")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    programs = {"ours": (sys.executable, _OURS), "HTA": (options.hta, _HTA), "perfetto": (options.perfetto, _PERFETTO)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        peak_bytes = write_trace(path, options.events)
        print(f"{options.events:,} events, {path.stat().st_size:,} bytes; its peak is {peak_bytes:,} bytes")
        seconds: dict[str, float] = {}
        for name, (python, code) in programs.items():
            if python is None:
                continue
            rounds = [_measured(name, [python, "-c", code, str(path)]) for _ in range(options.rounds)]
            seconds[name] = min(rounds)
        for name in seconds:
            print(f"{name:10} {seconds[name]:8.2f} s of processor time, {seconds[name] / seconds['ours']:.2f} of ours")


def _measured(name: str, command: list[str]) -> float:
    """Processor time of a child; says its memory and its answer."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
    assert child.stdout is not None
    answer = child.stdout.read().strip().splitlines()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall, cpu = time.perf_counter() - begun, used.ru_utime + used.ru_stime
    said = json.loads(answer[-1]) if answer and child.returncode == 0 else f"failed with {child.returncode}"
    print(f"{name:10} wall {wall:8.2f} s, processor {cpu:8.2f} s, memory {used.ru_maxrss / 1024:8.0f} MiB, {said}")
    return cpu


if __name__ == "__main__":
    main()
