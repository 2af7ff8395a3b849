"""Explains every byte of a training run's memory peak.

The folders are the data flow: what happened, what it means, who wants to know.

    errors, units      the two things that everybody may use
    collector          Python's garbage collector, paused where both readers run
    capture/           what happened: the only rooms that touch a running torch
    snapshot/          what happened, from a file: allocator snapshots of any age and machine
    allocator/         the caching allocator as a model: settings, allocate and free, replay of a history
    analysis/          what it means: pure functions from columns to frozen findings
    exporters/         who wants to know: one file per output format
    timeline_tracer    the on_trace_ready callback
    termination        SIGTERM and Ctrl-C, so that what was recorded is written, and no half of a file
    session            what is switched on around a training loop, and off again
    run_results        what a run brought to light, and what ended it
    run                a profiled run of a workload from start to finish
    failure_words      what ended a run, in the lines of the command line
    run_screen         the answer of a run, on a terminal
    outputs            which files a run leaves behind
    ranks              several processes: a folder for each, and what differs
    training           a session around somebody's own loop
    integrations/      the same as callbacks of other people's trainers
    snapshot_commands  the commands that read recordings made elsewhere

Imports point one way, from the top of this list to the bottom. The public names below are loaded when first used, so
that reading a snapshot does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.analysis.profiles.memory_timeline import MemoryTimeline
    from tracer.errors import TracerError
    from tracer.runs.session import ProfileSession, Schedule
    from tracer.runs.training import profile_training
    from tracer.timeline_tracer import TimelineTracer

__all__ = ["MemoryTimeline", "ProfileSession", "Schedule", "TimelineTracer", "TracerError", "profile_training"]

_HOMES = {
    "MemoryTimeline": "tracer.analysis.profiles.memory_timeline",
    "ProfileSession": "tracer.runs.session",
    "Schedule": "tracer.runs.session",
    "TimelineTracer": "tracer.timeline_tracer",
    "TracerError": "tracer.errors",
    "profile_training": "tracer.runs.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
