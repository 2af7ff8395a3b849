"""Walks over event trees, and what the columns that are read from any of them promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracer.capture.recording import CallKind, OpKind, Recording

TABLES = ("allocations", "keys", "flow", "ops", "calls", "spans", "frames", "modules")
KEY_SETS = ("gradient_keys", "parameter_keys", "optimizer_state_keys")
BOOL_COLUMNS = {
    "assumed", "node_backward", "edge_allocated", "edge_freed", "edge_mutated", "user", "own",
}  # fmt: skip


def tree(events: Any) -> Iterator[Any]:
    """Every event, parents first, by plain recursion."""
    for event in events:
        yield event
        yield from tree(event.children)


def columns(recording: Recording) -> dict[str, dict[str, Any]]:
    return {
        name: {f.name: getattr(getattr(recording, name), f.name) for f in dataclasses.fields(getattr(recording, name))}
        for name in TABLES
    }


def assert_consistent(recording: Recording) -> None:
    """What every recording promises, whatever was recorded."""
    for table in columns(recording).values():
        for name, column in table.items():
            assert column.ndim == 1
            assert column.dtype == (bool if name in BOOL_COLUMNS else np.int64), name
    num_ops, num_calls = len(recording.ops.name), len(recording.calls.kind)
    allocations, keys, flow = recording.allocations, recording.keys, recording.flow
    ops, calls, frames = recording.ops, recording.calls, recording.frames
    for column, low, high in (
        (allocations.key, -1, len(keys.id)),
        (allocations.device, 0, len(recording.devices)),
        (allocations.op, -1, num_ops),
        (allocations.call, -1, num_calls),
        (keys.device, 0, len(recording.devices)),
        (flow.edge_node, 0, len(flow.node_time_ns)),
        (flow.edge_key, 0, len(keys.id)),
        (ops.name, 0, len(recording.strings)),
        (ops.kind, 0, len(OpKind)),
        (ops.call, -1, num_calls),
        (ops.inline_frame, -1, len(frames.file)),
        (ops.last_frame, -1, len(frames.file)),
        (ops.input_shapes, 0, len(recording.shapes)),
        (calls.kind, 0, len(CallKind)),
        (calls.op, -1, num_ops),
        (calls.frame, -1, len(frames.file)),
        (calls.function, -1, len(frames.file)),
        (calls.module, -1, len(recording.modules.name)),
        (recording.spans.name, 0, len(recording.strings)),
        (frames.file, 0, len(recording.strings)),
        (frames.function, 0, len(recording.strings)),
        (recording.modules.name, 0, len(recording.strings)),
        *((getattr(recording, name), 0, len(keys.id)) for name in KEY_SETS),
    ):
        assert ((column >= low) & (column < high)).all()
    for part in (ops, calls):
        assert (part.parent < np.arange(len(part.parent))).all(), "parents come before their children"
        assert (part.parent >= -1).all()
        inner = part.parent >= 0
        assert (part.start_ns[inner] >= part.start_ns[part.parent[inner]]).all()
        assert (part.end_ns >= part.start_ns).all()
    assert (np.diff(flow.node_time_ns) >= 0).all()
    edges = list(zip(flow.edge_node.tolist(), flow.edge_key.tolist(), strict=True))
    assert edges == sorted(set(edges))
    sort_keys = list(zip(keys.id.tolist(), keys.allocation_id.tolist(), strict=True))
    assert sort_keys == sorted(sort_keys)
    assert len(set(recording.strings)) == len(recording.strings)
    held: dict[int, int] = {}
    for number, size in zip(allocations.allocation_id.tolist(), allocations.size_bytes.tolist(), strict=True):
        # Made once at most, freed once at most, and in this order.
        assert number not in held if size > 0 else held.get(number, 1) > 0
        held[number] = size


class FakeResults:
    """A profiler's results, with these events."""

    def __init__(self, *roots: Any) -> None:
        self.roots = list(roots)

    def experimental_event_tree(self) -> list[Any]:
        return self.roots

    def events(self) -> list[Any]:
        """Nothing ran on a device."""
        return []
