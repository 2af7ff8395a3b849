"""The files that a run leaves behind: what each is called, by its switch and on the disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a run can write."""

    name: str  # Name in the option `--no-<name>`
    file_name: str
    read_with: str
    # Help of the option that leaves it out; empty for a file that is written only where it is asked for.
    switch_help: str = ""


_TEXT, _JSON, _SQLITE = "any text viewer", "jq, or any program", "sqlite3, or Skyline's readers"
MAX_MEM = OutputFile("max-mem", "max_mem.txt", _TEXT, "Leave out max_mem.txt, the breakdown at the peak.")
PAGE = OutputFile("memory-timeline", "memory_timeline.html", "a browser", "Leave out memory_timeline.html, the page.")
PEAK = OutputFile("peak-json", "peak.json", _JSON, "Leave out peak.json, every row of the peak.")
MEMORY_REPORT = OutputFile("memory-report", "memory_report.sqlite", _SQLITE, "Leave out memory_report.sqlite.")
RUN_TIME_REPORT = OutputFile("run-time-report", "run_time_report.sqlite", _SQLITE, "Leave out run_time_report.sqlite.")
SNAPSHOT = OutputFile(
    "memory-snapshot", "memory_snapshot.pkl", "https://pytorch.org/memory_viz", "Leave out memory_snapshot.pkl."
)
TIMING = OutputFile("cuda-timing", "cuda_timing.txt", _TEXT, "Do not time the phases, and leave out cuda_timing.txt.")
RECORDING = OutputFile("keep-recording", "recording.npz", "the command `report`")
RANK_JSON, RANKS_JSON, RANKS_TEXT = "rank.json", "ranks.json", "ranks.txt"
"""Message of a rank in its own folder; summary of all ranks beside the folders, which rank 0 writes."""
WATCH_JSON, FIT_JSON, ENGINE_JSON = "watch.json", "fit.json", "engine.json"
"""Findings of a watched training, trials of a script's changes, and memory of an inference engine."""
PHASES_JSON = "phases.json"
"""Memory by phase, and memory of the host."""
