"""The peak of a device: the live blocks, in rows that sum to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np

from tracer.answers.rows import PeakRow
from tracer.arrays import Int, PerBlock, at, grouped, largest_first, totals_by
from tracer.blocks.from_recording.allocator_count import CountedParts
from tracer.blocks.from_recording.allocator_join import InUse, JoinedHistory, in_use_after, in_use_at, last_events
from tracer.blocks.from_recording.attribution import Attribution, Phase
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.classify_blocks import ClassifiedBlocks, Cycle
from tracer.blocks.from_recording.origins import Origin
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.blocks.from_recording.torch_categories import Category
from tracer.blocks.kinds import Evidence, Kind
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import MATRIX_OPERATORS, node_name

# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"
CUBLAS_OWNER = "(cuBLAS)"
CUBLAS_WORKSPACE = "cuBLAS workspace"
_SOME_STEP = -2
_HAVE_OWN_LINE = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
"""A gradient has its parameter's name, and not its line."""


def line_before(known: KnownStorages | None, name: int, kind: int) -> SourceLine | None:
    """The user's line that made a block from before the recording, where somebody has seen it.

    Args:
        name: Row of `known.names`, or -1.
    """
    if known is None or name < 0 or kind not in _HAVE_OWN_LINE:
        return None
    return known.lines.get(known.names[name])


def origin_of(attribution: Attribution, allocation: int) -> Origin | None:
    """Origin of a block of a compiled region; None for any other block."""
    origins = attribution.origins
    row = int(origins.row[allocation]) if origins is not None and allocation >= 0 else -1
    return origins.origins[row] if origins is not None and row >= 0 else None


def group_rows(
    cycle: Cycle,
    known: KnownStorages | None,
    blocks: ClassifiedBlocks,
    *,
    history: JoinedHistory | None = None,
    by_step: bool = True,
) -> tuple[tuple[PeakRow, ...], PerBlock[Int]]:
    """Put equal blocks together: same kind, evidence, phase, owner, name, shape and dtype. Largest first.

    Returns:
        The rows, and [B] the row of each block.
    """
    columns = _columns_that_tell_apart(cycle, blocks, by_step=by_step)
    groups = grouped(columns, partial(_row, cycle, known, history))
    requested, num_unknown = groups.sums(blocks.requested_bytes), groups.sums(blocks.requested_bytes < 0)
    sums = zip(groups.keys, groups.sums(blocks.size_bytes), groups.counts(), requested, num_unknown, strict=True)
    rows = [
        # One block of unknown request makes that of its row unknown.
        replace(row, bytes=size, count=count, requested_bytes=None if unknown else requested_bytes)
        for row, size, count, requested_bytes, unknown in sums
    ]
    return largest_first(rows, groups.of_row)


def _columns_that_tell_apart(cycle: Cycle, blocks: ClassifiedBlocks, *, by_step: bool) -> tuple[PerBlock[Int], ...]:
    """[B] each: all that a row says of its blocks, as numbers; `_row` reads them in this order."""
    recording, origins = cycle.recording, cycle.attribution.origins
    return (
        blocks.kind,
        blocks.torch_category,
        blocks.evidence,
        blocks.phase,
        blocks.step if by_step else np.where(blocks.step >= 0, _SOME_STEP, blocks.step),
        blocks.module,
        at(recording.ops.name, blocks.op, -1),
        blocks.frame,
        blocks.caller,
        blocks.name,
        blocks.stack,
        at(np.empty(0, np.int64) if origins is None else origins.row, blocks.allocation, -1),
        at(recording.keys.shape, blocks.key, -1),
        at(recording.keys.dtype, blocks.key, -1),
    )


def _row(cycle: Cycle, known: KnownStorages | None, history: JoinedHistory | None, *values: int) -> PeakRow:
    """The row of blocks with these values, without bytes and counts."""
    recording, attribution = cycle.recording, cycle.attribution
    kind, tag, evidence, phase, step, module, op, frame, caller, name, stack, origin_row, shape, dtype = values
    label = known.names[name] if known is not None and name >= 0 else None
    origins = attribution.origins
    origin = origins.origins[origin_row] if origins is not None and origin_row >= 0 else None
    # The allocator's history may have the line of a block from before the recording.
    site = history.sites.site(stack) if history is not None and stack >= 0 else None
    in_history = (site.file, site.line) if site is not None else (None, None)
    file, line = line_of_frame(recording, frame) or line_before(known, name, kind) or in_history
    caller_file, caller_line = line_of_frame(recording, caller) or (None, None)
    is_on_cpu = recording.devices[cycle.lifetimes.device] == "cpu"
    is_product = op >= 0 and recording.strings[op] in MATRIX_OPERATORS and not is_on_cpu
    if is_cublas := evidence == Evidence.LIBRARYS or (evidence == Evidence.NO_TENSOR and is_product):
        label = CUBLAS_WORKSPACE
    outside = OPTIMIZER_OWNER if phase == Phase.OPTIMIZER else LOOP_OWNER if frame >= 0 else None
    module_path = attribution.modules[module] if module >= 0 else _owner(label, kind) or outside
    return PeakRow(
        bytes=0,
        count=0,
        category=Kind(kind).name,
        torch_category=Category(tag).name if tag != Category.UNTAGGED else None,
        evidence=Evidence(evidence).text,
        phase=Phase(phase).name.lower() if phase >= 0 else ("before recording" if step == -1 else "not recorded"),
        module=CUBLAS_OWNER if is_cublas else module_path,
        op=origin.words if origin is not None else node_name(recording.strings[op]) if op >= 0 else None,
        file=file,
        line=line,
        name=label,
        step=attribution.step_names[step] if step >= 0 else None,
        caller_file=caller_file,
        caller_line=caller_line,
        fused_with=", ".join(f"{file}:{line}" for file, line in origin.fused) or None if origin is not None else None,
        is_compiled=origin is not None,
        shape=recording.shapes[shape][0] if shape >= 0 else None,
        dtype=recording.strings[dtype] if shape >= 0 else None,
    )


def _owner(label: str | None, kind: int) -> str | None:
    owned = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
    if label is None or kind not in owned:
        return None
    parts = label.split(".")
    # An optimizer's state is named after its parameter: `fc1.weight.exp_avg`.
    depth = 2 if kind == Kind.OPTIMIZER_STATE else 1
    return ".".join(parts[:-depth]) or None


@dataclass(frozen=True, slots=True)
class AllocatorPeak:
    """Facts of the peak that the allocator's own history alone has."""

    requested_bytes: int  # Sum of what was requested; the peak is the same, rounded up block by block
    pending_bytes: int  # Freed by the program and still used by another stream: neither allocated nor free
    reserved_bytes: int
    free_bytes: int  # Reserved bytes that were in no block in use
    largest_free_bytes: int  # The largest piece of that in one segment
    num_joined: int  # Blocks of the recording that the history has too, whether alive at the peak or not
    num_blocks: int  # Blocks that the recording saw being made


@dataclass(frozen=True, slots=True, eq=False)
class PeakReport:
    """The peak of one device in one cycle."""

    device: str  # Name as `str(torch.device)` writes it
    peak_bytes: int
    allocator_peak_bytes: int  # Counted without looking at blocks; the rows and `unexplained_bytes` sum to it
    counted: CountedParts  # The parts that sum to `allocator_peak_bytes`
    reserved_bytes: int  # Reserved memory at the peak; 0 where the device has no such thing
    time_ns: int
    position: int  # Position in `BlockLifetimes.events` of the event after which so much was in use
    step: str | None  # Name of the step, or None
    phase: str | None  # Phase of the allocation that made the peak, or None
    rows: tuple[PeakRow, ...]
    blocks: ClassifiedBlocks
    row_of: PerBlock[Int]  # [B] The row of each of them
    allocator: AllocatorPeak | None = None  # From the allocator's own history; None where there is none
    threads: tuple[str, ...] = ()  # Other threads that called the model, which the profiler does not record

    @property
    def unexplained_bytes(self) -> int:
        """Bytes that were counted and are in no row; negative if rows show more than was counted."""
        return self.allocator_peak_bytes - self.peak_bytes

    @property
    def unseen_bytes(self) -> int:
        """Bytes of the peak that were allocated where the profiler does not record."""
        is_unseen = np.isin(self.blocks.evidence, (Evidence.UNSEEN, Evidence.UNSEEN_SAVED))
        return int(self.blocks.size_bytes[is_unseen].sum())

    def by_category(self) -> dict[str, int]:
        """Bytes by category, largest first."""
        return {category: size for category, (size, _) in totals_by(self.rows, attrgetter("category")).items()}


def worst_of(peaks: Sequence[PeakReport]) -> int:
    """Index of the largest peak; of equal ones the one with allocator history, else the first."""
    return max(range(len(peaks)), key=lambda index: (peaks[index].peak_bytes, peaks[index].allocator is not None))


def peak_position(lifetimes: BlockLifetimes) -> int:
    """Position in `BlockLifetimes.events` of the event after which most was allocated; the first maximum wins."""
    return int(np.argmax(lifetimes.allocator_bytes))


def peak_report(
    cycle: Cycle,
    *,
    known: KnownStorages | None = None,
    history: JoinedHistory | None = None,
    entry: int | None = None,
) -> PeakReport:
    """Explain the peak of a cycle, in which there is at least one event.

    Args:
        entry: Explain what was in use after this entry of the history, in place of the peak.
    """
    recording, attribution, lifetimes, blocks = cycle.recording, cycle.attribution, cycle.lifetimes, cycle.blocks
    made_at = position = peak_position(lifetimes)
    in_use = None
    if history is not None and entry is not None:
        made_at, position = last_events(history, lifetimes, entry)
        in_use = in_use_after(history, lifetimes, entry, position)
    elif history is not None:
        in_use = in_use_at(history, lifetimes, position)
    counted, counted_bytes = lifetimes.count.at(position), int(lifetimes.allocator_bytes[position])
    if in_use is not None:  # whose sizes of what is unmapped are the allocator's own
        counted_bytes += counted.asleep_bytes - in_use.asleep_bytes
        counted = replace(counted, asleep_bytes=in_use.asleep_bytes)
    if in_use is not None and entry is not None:  # which may lie between two recorded events
        counted_bytes = in_use.memory.allocated_bytes - in_use.pending_bytes - in_use.asleep_bytes
    asleep_bytes = lifetimes.asleep.bytes_at(position)
    event = int(lifetimes.events[made_at])
    if in_use is not None:
        blocks = _with_history_sizes(blocks.take(in_use.block[in_use.block >= 0]), in_use)
    else:
        blocks = blocks.take(lifetimes.alive_at(position))
    allocations = recording.allocations
    step = int(attribution.allocation_step[event])
    rows, row_of = group_rows(cycle, known, blocks, history=history)
    return PeakReport(
        device=recording.devices[lifetimes.device],
        peak_bytes=int(blocks.size_bytes.sum()),
        allocator_peak_bytes=counted_bytes,
        counted=counted,
        reserved_bytes=max(0, int(allocations.total_reserved_bytes[event]) - asleep_bytes),
        time_ns=int(allocations.time_ns[event]),
        position=position,
        step=attribution.step_names[step] if step >= 0 else None,
        phase=Phase(int(attribution.allocation_phase[event])).name.lower(),
        rows=rows,
        blocks=blocks,
        row_of=row_of,
        allocator=AllocatorPeak(
            requested_bytes=int(in_use.requested_bytes.sum()),
            pending_bytes=in_use.pending_bytes,
            reserved_bytes=in_use.memory.reserved_bytes - asleep_bytes,
            free_bytes=in_use.memory.free_bytes,
            largest_free_bytes=in_use.memory.largest_free_bytes,
            num_joined=int((history.entry >= 0).sum()),
            num_blocks=int((lifetimes.allocation >= 0).sum()),
        )
        if history is not None and in_use is not None
        else None,
        threads=known.threads if known is not None else (),
    )


def _with_history_sizes(blocks: ClassifiedBlocks, in_use: InUse) -> ClassifiedBlocks:
    """Sizes as the allocator has them, and behind the known blocks those that the recording never saw."""
    seen = in_use.block >= 0
    unseen = ~seen
    # Blocks from before the recording are known by their tensors: they lack a line, and a tensor may be smaller.
    known = replace(
        blocks,
        size_bytes=in_use.size_bytes[seen],
        requested_bytes=in_use.requested_bytes[seen],
        stack=np.where(blocks.allocation < 0, in_use.stack[seen], -1),
    )
    # A block that only the allocator's history has was allocated before the recording.
    usual = {"kind": Kind.BEFORE_RECORDING, "torch_category": Category.UNTAGGED, "evidence": Evidence.HISTORY}
    columns = {
        name: np.full(int(unseen.sum()), int(usual.get(name, -1)), np.int64) for name in ClassifiedBlocks.names()
    }
    for name in ("size_bytes", "requested_bytes", "address", "stack"):
        columns[name] = getattr(in_use, name)[unseen]
    return known.followed_by(ClassifiedBlocks(**columns))
