"""Buffers of collectives: which allocations FSDP and DDP made for them, and the modules whose parameters they carry."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tracer.arrays import Bool, Int, Ints, PerAllocation, PerKey, PerOp, Rows
from tracer.blocks.from_recording.time_spans import enclosing, merged
from tracer.capture.recording import CallKind, Recording
from tracer.capture.torch_names import (
    COLLECTIVE_PREFIXES,
    REDUCER_PREFIXES,
    SHARDED_MODULES,
    makes_buckets,
    makes_collectives_buffers,
    modules_of_collective,
)


def made_for_collectives(recording: Recording) -> PerAllocation[Bool]:
    """[A] whether FSDP or DDP made it as a buffer of a collective, by the functions of theirs that it was made in."""
    calls = recording.calls
    makes, buckets = recording.is_frame(makes_collectives_buffers), recording.is_frame(makes_buckets)
    call, time_ns = recording.allocations.call, recording.allocations.time_ns
    is_for_collective = np.zeros(len(call), np.bool_)
    making = makes[calls.function]
    for thread in np.unique(calls.thread[making]).tolist():
        rows = np.flatnonzero(making & (calls.thread == thread))
        inside = enclosing(*merged(calls.start_ns[rows], calls.end_ns[rows]), time_ns) >= 0
        is_for_collective |= inside & (call >= 0) & (calls.thread[call] == thread)
    if buckets.any():
        innermost = np.where((call >= 0) & (calls.kind[call] == CallKind.C_FUNCTION), calls.parent[call], call)
        is_for_collective |= (innermost >= 0) & buckets[calls.function[innermost]]
    return is_for_collective


def carried_modules(
    recording: Recording, chosen: PerAllocation[Bool], module_names: Mapping[int, str]
) -> dict[int, str]:
    """The modules whose parameters chosen buffers of FSDP2 carry, by row of the allocation; unknown ones left out."""
    spans, times_ns = recording.spans, recording.allocations.time_ns
    names = [modules_of_collective(recording.strings[name]) for name in spans.name.tolist()]
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(times_ns[rows], kind="stable")]
    # Dotted names of the modules that FSDP2 was given, as far as they were called: it puts its name before a class.
    modules, strings = recording.modules, recording.strings
    called = zip(modules.self_ptr.tolist(), modules.name.tolist(), strict=True)
    is_sharded = [at for at, name in called if strings[name].startswith(SHARDED_MODULES)]
    sharded = [module_names[at] for at in is_sharded if at in module_names]
    name_of_row: dict[int, str | None] = {}
    for span in np.argsort(spans.start_ns, kind="stable").tolist():  # the innermost last
        if (carried := names[span]) is not None:
            first, last = np.searchsorted(times_ns[rows], (spans.start_ns[span], spans.end_ns[span]))
            whole = [_below_the_root(name, sharded) for name in carried]
            name_of_row |= dict.fromkeys(rows[first:last].tolist(), _common(whole))
    return {row: name for row, name in name_of_row.items() if name is not None}


def _below_the_root(name: str, sharded: Iterable[str]) -> str | None:
    """The model's name of a module by the name that FSDP's root has for it: the root may be inside the model."""
    matching = sorted(
        {parameter for parameter in sharded if not name or f".{parameter}".endswith(f".{name}")}, key=_depth
    )
    if not matching or (len(matching) > 1 and _depth(matching[0]) == _depth(matching[1])):
        return None
    return matching[0]


def _depth(name: str) -> int:
    return len(name.split(".")) if name else 0


def _common(names: Sequence[str | None]) -> str | None:
    """The module that holds all of some; None where one is not known."""
    parts = [name.split(".") for name in names if name is not None]
    if len(parts) < len(names):
        return None
    alike = itertools.takewhile(lambda at: len(set(at)) == 1, zip(*parts, strict=False))
    return ".".join(part for part, *_ in alike)


def given_to_reducer(recording: Recording) -> PerKey[Bool]:
    """[K] whether DDP's reducer filled or read it: a bucket, or a gradient that is copied there and back."""
    is_used = np.zeros(len(recording.keys.id), np.bool_)
    is_used[_edges_inside(recording, REDUCER_PREFIXES)[0]] = True
    return is_used


def common_modules(recording: Recording, op_module: PerOp[Int], modules: tuple[str, ...]) -> PerKey[Int]:
    """[K] the module that holds all whose gradients DDP put into a bucket, as index of `modules`; -1 for none."""
    module_of_key = np.full(len(recording.keys.id), -1, np.int64)
    keys, ops = _edges_inside(recording, COLLECTIVE_PREFIXES)
    for key in np.unique(keys).tolist():
        carried = np.unique(op_module[ops[keys == key]])
        names = [modules[module] for module in carried.tolist() if module >= 0]
        if names and (name := _common(names)) in modules:
            module_of_key[key] = modules.index(name)
    return module_of_key


def _edges_inside(recording: Recording, prefixes: tuple[str, ...]) -> tuple[Rows, Ints]:
    """Keys of storages that operators with these name prefixes use, and the operators' rows, pairwise."""
    ops, edges = recording.ops, recording.flow
    rows = recording.ops_named(lambda text: text.startswith(prefixes))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    at = enclosing(ops.start_ns[rows], ops.end_ns[rows], edges.node_time_ns)[edges.edge_node]
    inside = at >= 0
    return edges.edge_key[inside], rows[at[inside]] if len(rows) else np.empty(0, np.int64)
