"""Kept runs for the tests of the file: one of the CPU, and one with all that a file can have."""

from __future__ import annotations

import dataclasses
import pickle
from functools import cache
from unittest import mock

import numpy as np
import torch

from tests.pieces import Pieces
from tracer.answers.failure import Failure
from tracer.answers.recording_findings import combine_cycles, find_in_cycle, with_allocator_history
from tracer.answers.run_history import RunHistory
from tracer.answers.run_results import RunResults
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.capture.objects.live_tensors import LiveTensors
from tracer.capture.recording import Allocations, Kernels, Recording
from tracer.capture.sources.compiled_code import CompiledCode, CompiledGraph
from tracer.exporters.memory_snapshot import snapshot_of_recording
from tracer.exporters.recording_file.kept_run_file import KeptRun
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run
from tracer.sessions.workload_run import run_profile
from tracer.snapshot.load import snapshot_in_memory

SHORT = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=2)
SETTINGS = {"batch_size": 8, "data_size": (8, 8), "inputs": ("3x4", "5"), "odd": [1, 2], "ratio": 0.5, "seed": None}


@cache
def on_cpu() -> RunResults:
    """A run with its timing pass and settings of every kind, alone in its process as far as it sees."""
    nothing_else = LiveTensors((), is_complete=True)
    with mock.patch("tracer.sessions.observations.live_tensors", lambda models: nothing_else):
        return run_profile(Pieces(), schedule=SHORT, settings=SETTINGS, keep_recording=True)


def on_cuda(*, oom: bool = False) -> RunResults:
    """That run's recordings as if they were of a GPU, with the history that its allocator would have left."""
    plain = on_cpu()
    assert plain.findings is not None
    known = dataclasses.replace(plain.known, devices=("cuda:0",) * len(plain.known.devices))
    cycles = []
    for cycle in plain.findings.parts:
        ops = cycle.source.recording.ops
        kernels = Kernels(ops.start_ns.copy(), ops.thread.copy(), np.full(len(ops.name), 1000))
        recording = dataclasses.replace(
            cycle.source.recording,
            devices=("cuda:0",),
            kernels=kernels,
            allocations=_counted_from_nothing(cycle.source.recording),
        )
        cycles.append(find_in_cycle(recording, known=known, module_names=plain.module_names, device="cuda:0"))
    # torch makes each of its words anew, where Python has one of each for all code.
    snapshot = pickle.loads(
        pickle.dumps(snapshot_of_recording(cycles[-1].source.recording, cycles[-1].source.lifetimes))
    )
    del snapshot["allocator_settings"]["caching_allocator"]  # which the CPU lacks, and a GPU has
    if oom:
        failed = {"action": "oom", "size": 1 << 40, "device_free": 5, "stream": 0, "frames": [], "time_us": 1}
        snapshot["device_traces"][0].append(failed)
    compiled = CompiledCode((CompiledGraph("/tmp/ab/cab.py", "def call(args):\n    return ()\n"),))
    findings = combine_cycles(cycles, compiled=compiled)
    findings = with_allocator_history(findings, snapshot_in_memory(snapshot), known=known)
    failure = (
        Failure(torch.OutOfMemoryError("CUDA out of memory"), 2, {"allocated": 5, "device": 80 << 30}) if oom else None
    )
    history = RunHistory(snapshot)
    changes = {"known": known, "history": history, "failure": failure, "device": "cuda:0"}
    changes["origin"] = dataclasses.replace(plain.origin, device_bytes=80 << 30)
    return dataclasses.replace(plain, findings=findings, **changes)  # type: ignore[arg-type]


def _counted_from_nothing(recording: Recording) -> Allocations:
    """A GPU's counter is absolute; the CPU's goes on from what earlier recordings of this process have left in it."""
    allocations = recording.allocations
    before = allocations.total_allocated_bytes[0] - allocations.size_bytes[0]
    return dataclasses.replace(allocations, total_allocated_bytes=allocations.total_allocated_bytes - before)


@cache
def kept_on_cpu() -> KeptRun:
    return kept_run(on_cpu())


@cache
def kept_on_cuda() -> KeptRun:
    """With a history, a failure and kernels."""
    objects = ObjectsAtFailure(
        is_evaluating=True,
        is_training=False,
        in_graphs=frozenset({512, 1024, 2048}),
        untrained=frozenset({512, 1024}),
        float64=frozenset({4096}),
    )
    return dataclasses.replace(kept_run(on_cuda(oom=True)), at_failure=objects)
