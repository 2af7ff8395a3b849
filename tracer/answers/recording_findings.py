"""Findings of one cycle and of several: the one place that sets the order of the analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracer.answers.findings import CycleFindings, DeviceFindings, Findings, RunFindings
from tracer.answers.growth import find_growth, find_survivors
from tracer.answers.peak import peak_of_cycle, peak_position
from tracer.blocks.from_recording.allocator_count import default_device, most_held_bytes
from tracer.blocks.from_recording.attribution import Attribution, attribute
from tracer.blocks.from_recording.block_facts import FailedStep
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes, follow_blocks
from tracer.blocks.from_recording.blocks import blocks_of_recording
from tracer.blocks.from_recording.compiled_owners import with_compiled_owners
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.from_recording.memory_timeline import device_index
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

if TYPE_CHECKING:
    from tracer.blocks.from_recording.allocator_join import JoinedHistory
    from tracer.capture.objects.at_failure import ObjectsAtFailure


def counted_blocks(cycle: CycleFindings) -> Blocks:
    """Return the blocks of a cycle; those from before with sizes and lines of the allocator's history, if it is there.

    At the peak they are the peak's rows.

    A block that an engine unmaps while it sleeps is one block for each time that it is on the device. A tensor from
    before may be smaller than its block, which the allocator has rounded up or not split. A block that
    only the history has was never freed in the cycle: the recording would have the free.
    """
    blocks, asleep = _as_allocated(cycle), cycle.source.lifetimes.asleep
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
    for row in cycle.source.lifetimes.alive_at(cycle.peak.position).tolist():
        if blocks.row[row] < 0:  # what the allocator does not have is in the sizes of others
            same = row_at_peak.get(int(blocks.address[row]))
            size_bytes[row] = at_peak.size_bytes[same] if same is not None else 0
            place[row] = at_peak.place[same] if same is not None else -1
    sized = replace(blocks, size_bytes=size_bytes, place=place, values=at_peak.values)
    return sized.followed_by(at_peak.take(np.flatnonzero(unseen)))


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
    parts = (recording, categories, attribution, lifetimes)
    blocks = blocks_of_recording(*parts, known=known, time_ns=_peak_ns(recording, lifetimes))
    cycle = Cycle(*parts, blocks, is_whole=is_whole)
    return DeviceFindings(cycle, peak_of_cycle(cycle, known=known))


def find_on_other_device(findings: RunFindings, device: str, *, known: KnownStorages | None = None) -> RunFindings:
    """Return the findings of the same cycles on another device; operators are not analyzed again."""
    cycles = []
    for cycle in (found.source for found in findings.parts):
        index = _index(cycle.recording, device)
        if index < 0:
            continue
        lifetimes = follow_blocks(cycle.recording, known, index)
        parts = (cycle.recording, cycle.categories, cycle.attribution, lifetimes)
        cycles.append(_cycle_findings(*parts, known=known, is_whole=cycle.is_whole))
    return combine_cycles(cycles, compiled=findings.compiled)


def combine_cycles(cycles: Sequence[CycleFindings], *, compiled: CompiledCode = NOTHING_COMPILED) -> RunFindings:
    """Findings of a run from those of its cycles, all of one device."""
    if not cycles:
        raise RecordingError(
            "The run ended before a single step was profiled.",
            hint="Run at least wait + warmup + active steps, and one more.",
        )
    bytes_by_device = most_held_bytes([cycle.source.recording for cycle in cycles])
    device = cycles[0].peak.device
    return Findings(
        tuple(cycles),
        growth=find_growth([find_survivors(cycle.source) for cycle in cycles]),
        other_devices={name: size for name, size in bytes_by_device.items() if name != device and size},
        compiled=compiled,
    )


def without_wrapped(findings: RunFindings) -> RunFindings:
    """Return the findings without cycles in which the profiler kept tensors alive that torch.func wraps.

    Only the cycles that recorded no uses of tensors count. If there are none, the findings have no growth.
    """
    cycles = [cycle for cycle in findings.parts if not cycle.source.recording.flow.has_uses]
    if cycles:
        return combine_cycles(cycles, compiled=findings.compiled)
    return replace(findings, growth=None)


def with_allocator_history(
    findings: RunFindings,
    snapshot: Snapshot,
    num_later: int = 0,
    *,
    known: KnownStorages | None = None,
    objects: ObjectsAtFailure | None = None,
) -> RunFindings:
    """Return the findings with the peak of one cycle as the allocator's history has it.

    Args:
        objects: Of the moment at which the recording failed.
    """
    from tracer.blocks.from_recording.allocator_join import join_history

    number = max(0, len(findings.parts) - 1 - num_later)
    cycle = findings.parts[number].source
    history = join_history(snapshot, findings.device, cycle.lifetimes)
    if history is None:
        return findings
    cycle = replace(cycle, history=history)
    failures = history.state.trace.where(Action.OOM)
    if len(failures) and (failed := _failed_step(cycle, history, int(failures[-1]), objects)) is not None:
        parts = (cycle.recording, cycle.categories, cycle.attribution, cycle.lifetimes)
        peak_ns = _peak_ns(cycle.recording, cycle.lifetimes)
        blocks = blocks_of_recording(*parts, known=known, time_ns=peak_ns, failed=failed)
        cycle = replace(cycle, blocks=blocks)
    explain = partial(peak_of_cycle, cycle, known=known)
    peak, at_failure = explain(), explain(entry=int(failures[-1])) if len(failures) else None
    if at_failure is not None and at_failure.peak_bytes == peak.peak_bytes:
        peak = at_failure  # of two moments with as much in use, people ask about this one
    joined = DeviceFindings(cycle, peak, at_failure)
    return replace(findings, parts=(*findings.parts[:number], joined, *findings.parts[number + 1 :]))


def _failed_step(
    cycle: Cycle, history: JoinedHistory, failure: int, objects: ObjectsAtFailure | None
) -> FailedStep | None:
    """Return where the step failed that this entry of the history ended; None where the program went on.

    The stack of the failed request tells the phase: autograd's threads have no Python frame, and with C++ frames the
    engine is seen.
    """
    from tracer.blocks.from_recording.allocator_join import last_events

    if (history.entry > failure).any():
        return None
    stack = int(history.state.trace.stack[failure])
    facts = history.sites.facts[stack : stack + 1]
    in_backward = has(facts, Fact.ENGINE).any() or not has(facts, Fact.STACK).any()
    in_optimizer = has(facts, Fact.OPTIMIZER_STEP).any()
    phase = Phase.OPTIMIZER if in_optimizer else Phase.BACKWARD if in_backward else Phase.FORWARD
    _, position = last_events(history, cycle.lifetimes, failure)
    held = frozenset[int]() if objects is None or objects.in_graphs is None else objects.seen - objects.in_graphs
    return FailedStep(position, phase, held)
