"""How large a kept recording is, and how long it takes to save, to load and to explain again.

    uv run python -m benchmarks.recording [--models fno16 resnet50] [--markdown]

One cycle of three steps each. Beside the file: its columns in memory.
Times are wall time and processor time of the fastest of some rounds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from benchmarks.engine import MODELS
from tracer.capture.kept_run import KeptRun
from tracer.exporters.recording_file.kept_run_file import kept_run_columns, load_kept_run, save_kept_run
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.workload_run import run_profile

NUM_ROUNDS = 3
COLUMNS = ("model", "events", "in memory, B/event", "file, B/event", "file")
TIMES = ("save", "load", "explain again", "the same, us/event")


@dataclass(frozen=True, slots=True)
class Spent:
    """The fastest of some rounds, in seconds."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.3f} s ({self.processor:.3f})"


def fastest(call: Callable[[], Any]) -> Spent:
    rounds = []
    for _ in range(NUM_ROUNDS):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        rounds.append((time.perf_counter() - wall, time.process_time() - processor))
    return Spent(*map(min, zip(*rounds, strict=True)))


def record(name: str) -> KeptRun:
    schedule = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=3, num_repeats=1)
    return kept_run(run_profile(MODELS[name].build(), schedule=schedule, timing=False))


def measured(name: str, folder: Path) -> list[str]:
    """One row of the table."""
    kept = record(name)
    columns = kept_run_columns(kept)
    path = folder / f"{name}.npz"
    save = fastest(lambda: save_kept_run(path, kept))
    load = fastest(lambda: load_kept_run(path))
    loaded = load_kept_run(path)
    explain = fastest(lambda: results_of(loaded))
    num_events, size_bytes = kept.num_events, path.stat().st_size
    in_memory = sum(column.nbytes for column in columns.values())
    return [
        MODELS[name].title,
        f"{num_events:,}",
        f"{in_memory / num_events:.1f}",
        f"{size_bytes / num_events:.1f}",
        f"{size_bytes / 1e6:.2f} MB",
        str(save),
        str(load),
        str(explain),
        " + ".join(f"{1e6 * spent.processor / num_events:.2f}" for spent in (save, load, explain)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--markdown", action="store_true", help="print a table for results.md")
    arguments = parser.parse_args()
    rows = [[*COLUMNS, *TIMES]]
    with tempfile.TemporaryDirectory() as folder:
        rows += [measured(name, Path(folder)) for name in arguments.models]
    if arguments.markdown:
        rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    for row in rows:
        print("| " + " | ".join(row) + " |" if arguments.markdown else "   ".join(row))


if __name__ == "__main__":
    main()
