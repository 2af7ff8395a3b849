"""Equal blocks put together, each group with its owner: the rows that people see."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tracer.analysis.compiled.origins import Origin
from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.allocator_join import JoinedHistory
from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks, Cycle
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.analysis.profiles.torch_categories import Category
from tracer.arrays import Int, PerBlock, at, grouped, largest_first
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import node_name

# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"
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


def _fused(origin: Origin | None) -> str | None:
    """The lines that were fused with that of the node which a compiled buffer stands for."""
    return ", ".join(f"{file}:{line}" for file, line in origin.fused) or None if origin is not None else None


def group_rows(
    cycle: Cycle,
    known: KnownStorages | None,
    blocks: ClassifiedBlocks,
    *,
    history: JoinedHistory | None = None,
    by_step: bool = True,
) -> tuple[tuple[PeakRow, ...], PerBlock[Int]]:
    """Put equal blocks together: same kind, evidence, phase, owner, name, shape and dtype. Largest first.

    Args:
        blocks: Blocks of the cycle, and what the allocator's history has beside them.

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
    file, line = line_of_frame(recording, frame) or line_before(known, name, kind) or _line_in_history(history, stack)
    caller_file, caller_line = line_of_frame(recording, caller) or (None, None)
    return PeakRow(
        bytes=0,
        count=0,
        category=Kind(kind).name,
        torch_category=Category(tag).name if tag != Category.UNTAGGED else None,
        evidence=Evidence(evidence).text,
        phase=Phase(phase).name.lower() if phase >= 0 else ("before recording" if step == -1 else "not recorded"),
        module=attribution.modules[module] if module >= 0 else _owner(label, kind) or _outside(phase, frame),
        op=origin.words if origin is not None else node_name(recording.strings[op]) if op >= 0 else None,
        file=file,
        line=line,
        name=label,
        step=attribution.step_names[step] if step >= 0 else None,
        caller_file=caller_file,
        caller_line=caller_line,
        fused_with=_fused(origin),
        is_compiled=origin is not None,
        shape=recording.shapes[shape][0] if shape >= 0 else None,
        dtype=recording.strings[dtype] if shape >= 0 else None,
    )


def _line_in_history(history: JoinedHistory | None, stack: int) -> tuple[str | None, int | None]:
    """File and line of what was made before the recording, where the allocator's history reaches back to it."""
    if history is None or stack < 0:
        return None, None
    site = history.sites.site(stack)
    return site.file, site.line


def _owner(label: str | None, kind: int) -> str | None:
    """The module that a named parameter, buffer or gradient belongs to."""
    owned = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
    if label is None or kind not in owned:
        return None
    parts = label.split(".")
    # An optimizer's state is named after its parameter: `fc1.weight.exp_avg`.
    depth = 2 if kind == Kind.OPTIMIZER_STATE else 1
    return ".".join(parts[:-depth]) or None


def _outside(phase: int, frame: int) -> str | None:
    """Text in the module column for a block that no module allocated."""
    if phase == Phase.OPTIMIZER:
        return OPTIMIZER_OWNER
    return LOOP_OWNER if frame >= 0 else None
