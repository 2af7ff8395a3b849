"""A step rehearsed with the CPU's rules, beside the profiler's recording of the same step: every block of both."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch

from tests.training_steps import Workload, build_workload
from tests.truth.isolate import value_in_fresh_process
from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.rehearsal.cpu_kernels import CpuKernels
from tracer.rehearsal.rehearse import rehearse
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.workloads.module_steps import StepWorkload

CPU = torch.device("cpu")
# What a training is made of; the rest are temporaries and kernels' own memory.
COMPARED = frozenset(
    {Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE, Kind.ACTIVATION, Kind.INPUT, Kind.HELD}
)


@dataclass(frozen=True, order=True)
class BlockRow:
    """What is said of a block."""

    kind: str
    size_bytes: int
    name: str
    module: str
    line: str
    phase: int


@dataclass(frozen=True)
class SideBySide:
    """Blocks that only one of the two has."""

    only_rehearsed: Counter[BlockRow]
    only_recorded: Counter[BlockRow]
    num_same: int


def as_step_workload(workload: Workload) -> StepWorkload:
    """With a module that holds its parameters, where it has no model."""
    model = workload.model or torch.nn.ParameterList(workload.parameters)
    return StepWorkload(workload.step, model, workload.optimizer, CPU)


@cache
def recorded_findings(name: str) -> CycleFindings:
    """Two steps behind the first, by the profiler."""
    built = as_step_workload(build_workload(name))
    schedule = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
    with ProfileSession(built.model, built.optimizer, device=CPU, schedule=schedule) as session:
        for _ in range(schedule.num_steps):
            built.forward(built.next_batch())
            session.step()
    assert session.fault is None
    return session.findings.worst


@cache
def rehearsed_findings(name: str) -> CycleFindings:
    """The same two steps, rehearsed."""
    rehearsal = rehearse(as_step_workload(build_workload(name)), device="cpu", num_steps=3, cpu_kernels=CpuKernels())
    return find_in_cycle(rehearsal.recording, known=rehearsal.known, module_names=rehearsal.module_names)


def rows_of(findings: CycleFindings) -> Counter[BlockRow]:
    """All blocks of the kinds that are compared."""
    blocks, recording = findings.blocks, findings.recording
    modules, frames, strings = findings.attribution.modules, recording.frames, recording.strings
    rows: Counter[BlockRow] = Counter()
    for n, kind in enumerate(blocks.kind.tolist()):
        if Kind(kind) not in COMPARED:
            continue
        frame, module = int(blocks.frame[n]), int(blocks.module[n])
        line = f"{strings[frames.file[frame]].rpartition('/')[2]}:{frames.line[frame]}" if frame >= 0 else ""
        row = BlockRow(
            Kind(kind).name,
            int(blocks.size_bytes[n]),
            "named" if blocks.name[n] >= 0 else "",
            modules[module] if module >= 0 else "",
            line,
            int(blocks.phase[n]),
        )
        rows[row] += 1
    return rows


def side_by_side(name: str) -> SideBySide:
    """Compare one of the tests' workloads, in a process where nothing else has left anything that Python can reach."""
    return value_in_fresh_process(_side_by_side, name)


def _side_by_side(name: str) -> SideBySide:
    rehearsed, recorded = rows_of(rehearsed_findings(name)), rows_of(recorded_findings(name))
    return SideBySide(rehearsed - recorded, recorded - rehearsed, (rehearsed & recorded).total())
