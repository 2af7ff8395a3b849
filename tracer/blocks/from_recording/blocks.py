"""The table of a recording's blocks: what each is, how that is known, and who made it.

Shapes: B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from tracer.arrays import Column, Int, Interned, PerBlock, at
from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.block_facts import Facts, FailedStep
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.classify_blocks import RULES
from tracer.blocks.from_recording.collectives import common_modules
from tracer.blocks.from_recording.origins import Origin
from tracer.blocks.from_recording.source_lines import line_of_frame
from tracer.blocks.from_recording.torch_categories import Categories, Category
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.rules import apply_rules
from tracer.blocks.table import BEFORE, NONE, NOT_RECORDED, Blocks, Phase, numbered
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import MATRIX_OPERATORS, node_name

# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"
CUBLAS_OWNER = "(cuBLAS)"
CUBLAS_WORKSPACE = "cuBLAS workspace"
_HAVE_OWN_LINE = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
"""A gradient has its parameter's name, and not its line."""


def blocks_of_recording(
    recording: Recording,
    categories: Categories,
    attribution: Attribution,
    lifetimes: BlockLifetimes,
    *,
    known: KnownStorages | None = None,
    time_ns: int,
    failed: FailedStep | None = None,
) -> Blocks:
    """Say of every block of one device, row by row, what it is, how that is known, and who made it.

    Args:
        time_ns: The moment of which torch's categories are taken, that of the peak: they change where a tensor is
            written to.
        failed: Where the last step ran out of memory.
    """
    allocation, key, origins = lifetimes.allocation, lifetimes.key, attribution.origins
    category = categories_at(recording, categories, lifetimes, time_ns)
    facts = Facts(recording, categories, attribution, lifetimes, category, known, time_ns, failed)
    kind, evidence = apply_rules(RULES, facts)
    op = at(recording.ops.name, facts.maker, NONE)
    frame = at(attribution.allocation_frame, allocation, NONE)
    name = at(facts.device.known.name, lifetimes.observed_as, NONE)
    origin = at(np.empty(0, np.int64) if origins is None else origins.row, allocation, NONE)
    shape = at(recording.keys.shape, key, NONE)
    dtype = np.where(shape >= 0, at(recording.keys.dtype, key, NONE), NONE)
    module = _modules(recording, attribution, lifetimes, evidence)
    is_product = recording.is_text(MATRIX_OPERATORS.__contains__)[op] & (recording.devices[lifetimes.device] != "cpu")
    is_cublas = (evidence == Evidence.LIBRARY) | ((evidence == Evidence.NO_TENSOR) & is_product)
    names, values = known.names if known is not None else (), Interned()

    def name_of(row: int) -> str | None:
        return names[row] if row >= 0 else None

    def operator(row: int) -> str | None:
        return node_name(recording.strings[row]) if row >= 0 else None

    def made_by(row: int, origin: int) -> str | None:
        return origins.origins[origin].words if origins is not None and origin >= 0 else operator(row)

    def module_path(row: int) -> str | None:
        return attribution.modules[row] if row >= 0 else None

    def owner(module: int, name: int, kind: int, phase: int, has_frame: int, is_cublas: int) -> str | None:
        if is_cublas:
            return CUBLAS_OWNER
        outside = OPTIMIZER_OWNER if phase == Phase.OPTIMIZER else LOOP_OWNER if has_frame else None
        return module_path(module) or _owner(name_of(name), kind) or outside

    def place(frame: int, name: int, kind: int) -> Site | None:
        line = line_of_frame(recording, frame) or line_before(known, name, kind)
        return None if line is None else Site("", *line)

    def of(value: Callable[..., Hashable], *columns: Column[Any]) -> PerBlock[Int]:
        return numbered(values, columns, value)

    return Blocks.of(
        len(allocation),
        made_at=lifetimes.made_at,
        freed_at=lifetimes.freed_at,
        size_bytes=lifetimes.size_bytes,
        allocated_bytes=lifetimes.size_bytes,
        address=lifetimes.address,
        row=allocation,
        kind=kind,
        evidence=evidence,
        phase=np.where(facts.made >= 0, facts.made, np.where(lifetimes.made_at < 0, BEFORE, NOT_RECORDED)),
        frame=frame,
        torch_category=of(lambda row: None if row == Category.UNTAGGED else Category(row).name, category),
        step=of(lambda row: attribution.step_names[row] if row >= 0 else None, _steps(attribution, lifetimes)),
        module=of(module_path, module),
        operator=of(operator, op),
        owner=of(owner, module, name, kind, facts.made, frame >= 0, is_cublas),
        made_by=of(made_by, op, origin),
        origin=of(lambda row: origins.origins[row] if origins is not None and row >= 0 else None, origin),
        place=of(place, frame, name, kind),
        caller=of(lambda row: line_of_frame(recording, row), at(attribution.allocation_caller, allocation, NONE)),
        name=of(lambda name, is_cublas: CUBLAS_WORKSPACE if is_cublas else name_of(name), name, is_cublas),
        shape=of(lambda row: recording.shapes[row][0] if row >= 0 else None, shape),
        dtype=of(lambda row: recording.strings[row] if row >= 0 else None, dtype),
        values=tuple(values),  # behind the columns, which number them
    )


def categories_at(
    recording: Recording, categories: Categories, lifetimes: BlockLifetimes, time_ns: int
) -> PerBlock[Int]:
    """[B] torch's category of each block in the version that it had at one time."""
    edges = recording.flow
    written = edges.edge_mutated & ~edges.edge_allocated & ~edges.edge_freed
    written &= edges.node_time_ns[edges.edge_node] <= time_ns
    version = np.bincount(edges.edge_key[written], minlength=len(recording.keys.id))
    key = lifetimes.key
    return categories.of(key, np.where(key >= 0, version[key] if len(version) else 0, 0))


def _modules(
    recording: Recording, attribution: Attribution, lifetimes: BlockLifetimes, evidence: PerBlock[Int]
) -> PerBlock[Int]:
    """[B] who made it; of DDP's buckets, whose gradients are in it."""
    allocation, key, column = lifetimes.allocation, lifetimes.key, attribution.allocation_module
    module = at(column, allocation, NONE)
    rows = np.flatnonzero(evidence == Evidence.GIVEN_TO_REDUCER)
    if len(rows):
        module[rows] = common_modules(recording, attribution.op_module, attribution.modules)[key[rows]]
    return module


def _steps(attribution: Attribution, lifetimes: BlockLifetimes) -> PerBlock[Int]:
    end, made_at, column = len(lifetimes.events), lifetimes.made_at, attribution.allocation_step
    inside = (made_at >= 0) & (made_at < end)
    return np.where(inside, column[lifetimes.events[np.where(inside, made_at, 0)]] if end else NONE, NONE)


def _owner(label: str | None, kind: int) -> str | None:
    owned = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
    if label is None or kind not in owned:
        return None
    parts = label.split(".")
    # An optimizer's state is named after its parameter: `fc1.weight.exp_avg`.
    depth = 2 if kind == Kind.OPTIMIZER_STATE else 1
    return ".".join(parts[:-depth]) or None


def line_before(known: KnownStorages | None, name: int, kind: int) -> SourceLine | None:
    """The user's line that made a block from before the recording, where somebody has seen it."""
    if known is None or name < 0 or kind not in _HAVE_OWN_LINE:
        return None
    return known.lines.get(known.names[name])


def origin_of(attribution: Attribution, allocation: int) -> Origin | None:
    """Origin of a block of a compiled region; None for any other block."""
    origins = attribution.origins
    row = int(origins.row[allocation]) if origins is not None and allocation >= 0 else -1
    return origins.origins[row] if origins is not None and row >= 0 else None
