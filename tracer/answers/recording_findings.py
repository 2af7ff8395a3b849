"""All questions asked of one cycle, and of several: the one place that says in which order the analyses run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from tracer.answers.growth import Growth, Survivors, find_growth, find_survivors
from tracer.answers.operators.invocations import OpInstances, op_instances
from tracer.answers.operators.run_times import RunTimeRow, run_times
from tracer.answers.peak import Peak, peak_of_cycle, peak_position, worst_of
from tracer.answers.rows import Row
from tracer.blocks.from_recording.allocator_count import default_device, most_held_bytes
from tracer.blocks.from_recording.allocator_join import JoinedHistory, join_history, last_events
from tracer.blocks.from_recording.attribution import Attribution, attribute
from tracer.blocks.from_recording.block_facts import FailedStep
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes, follow_blocks
from tracer.blocks.from_recording.blocks import Cycle, blocks_of_recording
from tracer.blocks.from_recording.compiled_owners import with_compiled_owners
from tracer.blocks.from_recording.memory_timeline import Breakdown, CycleBreakdown, cycle_breakdown, device_index
from tracer.blocks.from_recording.origins import compiled_origins
from tracer.blocks.from_recording.torch_categories import Categories, categorize
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Evidence
from tracer.blocks.table import Blocks, Phase
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import NOTHING_COMPILED, CompiledCode, CompiledGraph
from tracer.errors import RecordingError
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Snapshot

SHOWN = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """Time and peak of one phase of one step."""

    step: str
    phase: str  # forward, backward or optimizer
    # Start of the first and end of the last operator of each stretch without another phase in between: one, or as many
    # as there are micro-batches, or evaluations by the optimizer.
    stretches_ns: tuple[tuple[int, int], ...]
    peak_bytes: int  # The most bytes in use during it, what is in use when it begins among them

    @property
    def start_ns(self) -> int:
        """Start of its first operator."""
        return self.stretches_ns[0][0]

    @property
    def end_ns(self) -> int:
        """End of its last operator."""
        return self.stretches_ns[-1][1]

    @property
    def duration_ns(self) -> int:
        """Time of all stretches, on the host."""
        return sum(end - start for start, end in self.stretches_ns)


def step_phases(cycle: Cycle) -> tuple[StepPhase, ...]:
    """Lay out the phases of every step: in each, that which ends first comes first."""
    recording, attribution, lifetimes = cycle.recording, cycle.attribution, cycle.lifetimes
    event_step = attribution.allocation_step[lifetimes.events]
    event_phase = attribution.allocation_phase[lifetimes.events]
    stretches = _stretches(recording, attribution)
    phases = []
    for step, name in enumerate(attribution.step_names):
        for phase in SHOWN:
            spans = stretches.get((step, phase))
            if spans is None:
                continue
            level = lifetimes.allocator_bytes[(event_step == step) & (event_phase == phase)]
            peak_bytes = int(np.max(level, initial=_in_use_at(spans[0][0], recording, lifetimes)))
            phases.append((step, StepPhase(name, phase.name.lower(), tuple(spans), peak_bytes)))
    return tuple(phase for _, phase in sorted(phases, key=lambda pair: (pair[0], pair[1].end_ns)))


def _in_use_at(time_ns: int, recording: Recording, lifetimes: BlockLifetimes) -> int:
    times_ns = np.maximum.accumulate(recording.allocations.time_ns[lifetimes.events])
    position = int(np.searchsorted(times_ns, time_ns, side="right")) - 1
    if position >= 0:
        return int(lifetimes.allocator_bytes[position])
    return int(lifetimes.size_bytes[lifetimes.alive_at(-1)].sum())


def _stretches(recording: Recording, attribution: Attribution) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of each run of operators of one phase, by step and phase; what is in no phase ends none."""
    ops = recording.ops
    rows = np.flatnonzero((attribution.op_step >= 0) & (attribution.op_phase != Phase.OTHER))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    step, phase = attribution.op_step[rows], attribution.op_phase[rows]
    begins = np.ones(len(rows), bool)
    begins[1:] = (step[1:] != step[:-1]) | (phase[1:] != phase[:-1])
    first = np.flatnonzero(begins)
    if not len(first):
        return {}
    end_ns = np.maximum.reduceat(ops.end_ns[rows], first)
    stretches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for begin, end in zip(first.tolist(), end_ns.tolist(), strict=True):
        stretches.setdefault((int(step[begin]), int(phase[begin])), []).append((int(ops.start_ns[rows[begin]]), end))
    return stretches


@dataclass(frozen=True, slots=True)
class GraphPool:
    """A private pool in which CUDA graphs work."""

    num_graphs: int  # Graphs that share it and are alive
    reserved_bytes: int  # Reserved for it; nothing else may use it
    allocated_bytes: int  # Of that in blocks that torch counts, such as results that the program holds
    first_cycle: int  # The first recorded cycle whose peak came when all had been captured; their number if none did
    has_backward: bool  # Whether a backward pass is replayed, or may be
    # In use at the peak of the capture at which most was, with what earlier ones had left; 0 where none was recorded.
    peak_bytes: int
    rows: tuple[Row, ...]  # What that was, the largest first; they sum to it

    @property
    def uncounted_bytes(self) -> int:
        """Reserved for it and in no block that torch counts: what replays work in."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True, eq=False)
class CycleFindings(Cycle):
    """What one cycle's recording says about one device.

    `history` is the allocator's own, joined with the blocks; None where there is none of this cycle.
    `at_failure` is what was in use at the last failure in that history; None where nothing failed.
    `is_whole` is False for a cycle that the end of the run, or a failure, cut short.
    """

    breakdown: CycleBreakdown
    peak: Peak
    survivors: Survivors
    step_phases: tuple[StepPhase, ...]
    is_whole: bool = True
    history: JoinedHistory | None = None
    at_failure: Peak | None = None


def counted_blocks(cycle: CycleFindings) -> Blocks:
    """Return the blocks of a cycle; those from before with sizes and lines of the allocator's history, if it is there.

    At the peak they are the peak's rows.

    A block that an engine unmaps while it sleeps is one block for each time that it is on the device. A tensor from
    before may be smaller than its block, which the allocator has rounded up or not split. A block that
    only the history has was never freed in the cycle: the recording would have the free.
    """
    blocks, asleep = _as_allocated(cycle), cycle.lifetimes.asleep
    if not len(asleep.address):
        return blocks
    rows, made_at, freed_at = asleep.awake(blocks.address, blocks.made_at, blocks.freed_at)
    return replace(blocks.take(rows), made_at=made_at, freed_at=freed_at)


def _as_allocated(cycle: CycleFindings) -> Blocks:
    blocks = cycle.blocks
    if cycle.peak.allocator is None:
        return blocks
    at_peak = cycle.peak.blocks
    unseen = at_peak.evidence == Evidence.HISTORY
    before = np.flatnonzero((at_peak.row < 0) & ~unseen)
    row_at_peak = dict(zip(at_peak.address[before].tolist(), before.tolist(), strict=True))
    size_bytes, place = blocks.size_bytes.copy(), blocks.place.copy()
    for row in cycle.lifetimes.alive_at(cycle.peak.position).tolist():
        if blocks.row[row] < 0:  # what the allocator does not have is in the sizes of others
            same = row_at_peak.get(int(blocks.address[row]))
            size_bytes[row] = at_peak.size_bytes[same] if same is not None else 0
            place[row] = at_peak.place[same] if same is not None else -1
    sized = replace(blocks, size_bytes=size_bytes, place=place, values=at_peak.values)
    return sized.followed_by(at_peak.take(np.flatnonzero(unseen)))


@dataclass(frozen=True, eq=False)
class Findings:
    """Findings of a run's cycles about one device."""

    device: str  # Name as `str(torch.device)` writes it
    cycles: tuple[CycleFindings, ...]  # One or more, in order
    breakdown: Breakdown  # Means over the cycles in `averaged`
    growth: Growth | None = None  # What stays from step to step, or None
    # The most that the allocator of each other accelerator had handed out, by name, largest first.
    other_devices: Mapping[str, int] = field(default_factory=dict)
    compiled: CompiledCode = NOTHING_COMPILED
    graph_pools: tuple[GraphPool, ...] = ()  # What CUDA graphs work in, the largest first

    @property
    def worst(self) -> CycleFindings:
        """The cycle with the largest peak; of equal ones the one with allocator history, else the first."""
        return self.cycles[worst_of(self.peaks)]

    @property
    def graph_bytes(self) -> int:
        """Bytes that CUDA graphs use and torch counts as free, at the largest peak."""
        return self.graph_bytes_in(worst_of(self.peaks))

    def graph_bytes_in(self, cycle: int) -> int:
        """The same at the peak of one cycle, by its number."""
        peak = self.peaks[cycle]
        size_bytes = sum(pool.uncounted_bytes for pool in self.graph_pools if pool.first_cycle <= cycle)
        return min(size_bytes, max(0, peak.reserved_bytes - peak.peak_bytes)) if peak.reserved_bytes else size_bytes

    @cached_property
    def instances(self) -> tuple[OpInstances, ...]:
        """Operator invocations of each cycle."""
        return tuple(op_instances(cycle.recording, cycle.attribution) for cycle in self.cycles)

    @cached_property
    def run_times(self) -> tuple[RunTimeRow, ...]:
        """Run times of operators, averaged over all cycles."""
        return run_times([(cycle.recording, cycle.attribution) for cycle in self.cycles], instances=self.instances)

    @property
    def averaged(self) -> tuple[CycleFindings, ...]:
        """Cycles that means are taken over: the whole ones, or all if none is whole."""
        return _averaged(self.cycles)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The peak of each cycle."""
        return tuple(cycle.peak for cycle in self.cycles)


def find_in_cycle(
    recording: Recording,
    *,
    known: KnownStorages | None = None,
    module_names: Mapping[int, str] | None = None,
    device: str | None = None,
    is_whole: bool = True,
    graphs: tuple[CompiledGraph, ...] = (),
) -> CycleFindings:
    """Ask all questions of one cycle.

    Args:
        graphs: What torch.compile made of it; the recording has frames for the lines of their nodes.

    Raises:
        RecordingError: Nothing was allocated on the device.
    """
    name = device or default_device([recording])
    index = _index(recording, name)
    if index < 0:
        raise RecordingError(
            f"Nothing was allocated on {name} while the profiler recorded.",
            hint="Profile with profile_memory=True, and name the device that the model is on.",
        )
    categories = categorize(recording)
    lifetimes = follow_blocks(recording, known, index)
    attribution = with_compiled_owners(
        attribute(recording, module_names=module_names),
        recording,
        compiled_origins(recording, graphs, time_ns=_peak_ns(recording, lifetimes)),
        module_names or {},
    )
    return _cycle_findings(recording, categories, attribution, lifetimes, known=known, is_whole=is_whole)


def _index(recording: Recording, device: str) -> int:
    index = device_index(recording, device)
    return index if (recording.allocations.device == index).any() else -1


def _peak_ns(recording: Recording, lifetimes: BlockLifetimes) -> int:
    return int(recording.allocations.time_ns[lifetimes.events[peak_position(lifetimes)]])


def _cycle_findings(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    lifetimes: BlockLifetimes,
    *,
    known: KnownStorages | None,
    is_whole: bool,
) -> CycleFindings:
    """The answers about one device, from what is known of its blocks and, whatever the device, of the operators."""
    parts, peak_ns = (recording, categories, attribution, lifetimes), _peak_ns(recording, lifetimes)
    cycle = Cycle(*parts, blocks_of_recording(*parts, known=known, time_ns=peak_ns))
    peak = peak_of_cycle(cycle, known=known)
    return CycleFindings(
        *parts,
        cycle.blocks,
        breakdown=cycle_breakdown(cycle),
        peak=peak,
        survivors=find_survivors(cycle, is_whole=is_whole),
        step_phases=step_phases(cycle),
        is_whole=is_whole,
    )


def find_on_other_device(findings: Findings, device: str, *, known: KnownStorages | None = None) -> Findings:
    """What the same cycles say about another device of the run; what its operators are is not found out again."""
    cycles = []
    for cycle in findings.cycles:
        index = _index(cycle.recording, device)
        if index < 0:
            continue
        lifetimes = follow_blocks(cycle.recording, known, index)
        parts = (cycle.recording, cycle.categories, cycle.attribution, lifetimes)
        cycles.append(_cycle_findings(*parts, known=known, is_whole=cycle.is_whole))
    return put_together(cycles, compiled=findings.compiled)


def _averaged(cycles: Sequence[CycleFindings]) -> tuple[CycleFindings, ...]:
    """Whole cycles, or all if none is whole: a truncated cycle may have missed its peak."""
    return tuple(cycle for cycle in cycles if cycle.is_whole) or tuple(cycles)


def put_together(cycles: Sequence[CycleFindings], *, compiled: CompiledCode = NOTHING_COMPILED) -> Findings:
    """Findings of a run from those of its cycles, all of one device."""
    if not cycles:
        raise RecordingError(
            "The run ended before a single step was profiled.",
            hint="Run at least wait + warmup + active steps, and one more.",
        )
    device = cycles[0].peak.device
    averaged = _averaged(cycles)
    means = Breakdown(device, tuple(cycle.breakdown for cycle in averaged), len(cycles) - len(averaged))
    bytes_by_device = most_held_bytes([cycle.recording for cycle in cycles])
    others = {name: bytes_ for name, bytes_ in bytes_by_device.items() if name != device and bytes_}
    growth = find_growth([cycle.survivors for cycle in cycles])
    return Findings(device, tuple(cycles), means, growth, others, compiled)


def without_wrapped(findings: Findings) -> Findings:
    """The same run, of which the profiler kept alive what torch.func wraps while it recorded uses of tensors.

    Only the cycles without uses count, if there are any; else nothing is said of growth.
    """
    cycles = [cycle for cycle in findings.cycles if not cycle.recording.flow.has_uses]
    if cycles:
        return put_together(cycles, compiled=findings.compiled)
    return replace(findings, growth=None)


def with_allocator_history(
    findings: Findings, snapshot: Snapshot, num_later: int = 0, *, known: KnownStorages | None = None
) -> Findings:
    """The same findings, with the peak of one cycle by the allocator's own books."""
    number = max(0, len(findings.cycles) - 1 - num_later)
    cycle = findings.cycles[number]
    history = join_history(snapshot, findings.device, cycle.lifetimes)
    if history is None:
        return findings
    failures = history.state.trace.where(Action.OOM)
    if len(failures) and (failed := _failed_step(cycle, history, int(failures[-1]))) is not None:
        parts = (cycle.recording, cycle.categories, cycle.attribution, cycle.lifetimes)
        peak_ns = _peak_ns(cycle.recording, cycle.lifetimes)
        blocks = blocks_of_recording(*parts, known=known, time_ns=peak_ns, failed=failed)
        cycle = replace(cycle, blocks=blocks)
    explain = partial(peak_of_cycle, cycle, known=known, history=history)
    peak, at_failure = explain(), explain(entry=int(failures[-1])) if len(failures) else None
    if at_failure is not None and at_failure.peak_bytes == peak.peak_bytes:
        peak = at_failure  # of two moments with as much in use, people ask about this one
    joined = replace(cycle, peak=peak, history=history, at_failure=at_failure)
    return replace(findings, cycles=(*findings.cycles[:number], joined, *findings.cycles[number + 1 :]))


def _failed_step(cycle: Cycle, history: JoinedHistory, failure: int) -> FailedStep | None:
    """Return where the step failed that this entry of the history ended; None where the program went on.

    The stack of the failed request tells the phase: autograd's threads have no Python frame, and with C++ frames the
    engine is seen.
    """
    if (history.entry > failure).any():
        return None
    stack = int(history.state.trace.stack[failure])
    facts = history.sites.facts[stack : stack + 1]
    in_backward = has(facts, Fact.ENGINE).any() or not has(facts, Fact.STACK).any()
    in_optimizer = has(facts, Fact.OPTIMIZER_STEP).any()
    phase = Phase.OPTIMIZER if in_optimizer else Phase.BACKWARD if in_backward else Phase.FORWARD
    _, position = last_events(history, cycle.lifetimes, failure)
    return FailedStep(position, phase)
