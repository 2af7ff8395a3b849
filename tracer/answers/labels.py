"""Labels of a recording's blocks and their Python stacks, on entries of a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.arrays import Int, PerBlock
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.blocks import CUBLAS_WORKSPACE
from tracer.blocks.kinds import BEFORE_RECORDING, LABEL_BEFORE, Kind
from tracer.blocks.table import Blocks, Phase
from tracer.capture.recording import CallKind, Recording
from tracer.errors import SnapshotError
from tracer.own_files import frames_of_program

if TYPE_CHECKING:
    from tracer.answers.peak import Peak


Frame = dict[str, Any]  # `name`, `filename` and `line`, as a snapshot has them


@dataclass(frozen=True, slots=True)
class Labels:
    """Texts that a viewer shows of each block, columns [B] as in `BlockLifetimes`."""

    category: Sequence[str]  # A word by which the viewer colours
    # On top of the stack. The viewer shows its text; its file, which is none, names the kind to whoever reads the
    # snapshot.
    frame: Sequence[Frame]
    # The user's line that a block belongs to, where its own stack tells of another or none: of what backward made that
    # of forward, of what was there before the recording that which made it. None for other blocks.
    line: Sequence[Frame | None]

    def stack(self, block: int, frames: Sequence[Frame]) -> list[Frame]:
        """A block's own stack, below its label and its line."""
        line = self.line[block]
        return [self.frame[block], *([line] if line is not None else ()), *frames]


def labels_of(recording: Recording, blocks: Blocks) -> Labels:
    """Labels from what is known of every block."""
    category, labels = [], []
    lines: list[Frame | None] = []
    files: dict[str, str] = {}  # texts of their own: pickle writes what is the same object once
    numbers = (blocks.module, blocks.operator, blocks.name, blocks.place)
    columns = (blocks.kind, blocks.phase, blocks.frame, *numbers)
    for kind, phase, frame, *of_values in zip(*(column.tolist() for column in columns), strict=True):
        module, operator, name, site = map(blocks.value, of_values)
        word, words = Kind(kind).name, Kind(kind).words
        category.append(UNKNOWN if kind in (Kind.UNKNOWN, Kind.BEFORE_RECORDING) else word.lower())
        named = f" {name}" if name not in (None, CUBLAS_WORKSPACE) else ""
        origin = (
            f" in {Phase(phase).name.lower()}, {module or NO_MODULE}, {operator or 'no operator'}"
            if phase >= 0
            else LABEL_BEFORE
        )
        file = f"<explained as {word.lower()}>"
        labels.append({"name": f"{words}{named}{origin}", "filename": file, "line": 0})
        function = BEFORE_RECORDING if phase < 0 else None
        if phase == Phase.BACKWARD and frame >= 0:
            function = f"backward of {recording.strings[int(recording.frames.function[frame])]}"
        if function is None or site is None:
            lines.append(None)
            continue
        file = files.setdefault(site.file, site.file[:1] + site.file[1:])
        lines.append({"name": function, "filename": file, "line": site.line})
    return Labels(category, labels, lines)


NO_MODULE = "no module"  # In a label, of what was made in none

# The viewer needs this word on at least one entry as soon as one has a category: without it, its own way to add the
# word throws (torch/utils/viz/MemoryViz.js, annotate_snapshot).
UNKNOWN = "unknown"


def label_snapshot(
    snapshot: dict[str, Any],
    lifetimes: BlockLifetimes,
    labels: Labels,
    entry_of: PerBlock[Int],
    *,
    device_index: int,
) -> dict[str, Any]:
    """Write labels onto the entries of an allocator's own snapshot, and onto the blocks that are still in use.

    Args:
        snapshot: What `torch.cuda.memory._snapshot()` returned; it is not changed.
        entry_of: [B] Entry that made each of them, or -1; see `allocator_join`.

    Returns:
        A copy that shares what did not change.

    Raises:
        SnapshotError: The entries are not those that the blocks were joined with.
    """
    traces = list(snapshot["device_traces"])
    if device_index >= len(traces):
        return snapshot
    trace = [dict(entry) for entry in traces[device_index]]
    alive = lifetimes.counted_at(len(lifetimes.events) - 1).tolist()
    # Pairs of a block and its entry in the history: blocks of the recording, and those alive from before it.
    blocks = np.flatnonzero(entry_of >= 0)
    joined = list(zip(blocks.tolist(), entry_of[blocks].tolist(), strict=True))
    before = {int(lifetimes.address[block]): block for block in alive if entry_of[block] < 0}
    made = {entry["addr"]: n for n, entry in enumerate(trace) if before and entry["action"] == "alloc"}
    taken = set(entry_of[blocks].tolist())
    joined += [(block, made[at]) for at, block in before.items() if at in made and made[at] not in taken]
    for block, position in joined:
        entry = trace[position]
        if entry["addr"] != lifetimes.address[block]:
            raise SnapshotError("The recording was joined with another history of the allocator than this.")
        entry["category"] = labels.category[block]
        entry["frames"] = labels.stack(block, entry.get("frames", ()))
    if joined:
        for entry in trace:
            entry.setdefault("category", UNKNOWN)
    traces[device_index] = trace
    block_at = {int(lifetimes.address[block]): block for block in alive}

    def labelled(block: Mapping[str, Any]) -> Mapping[str, Any]:
        """Label a block of a segment: the viewer shows its frames for a block from before the history."""
        row = block_at.get(block.get("address", -1)) if block.get("state") == "active_allocated" else None
        return block if row is None else {**block, "frames": labels.stack(row, block.get("frames", ()))}

    segments = [
        {**segment, "blocks": [*map(labelled, segment.get("blocks") or ())]}
        if segment.get("device", 0) == device_index
        else segment
        for segment in snapshot["segments"]
    ]
    return {**snapshot, "device_traces": traces, "segments": segments}


class PythonStacks:
    """Python frames of allocations, innermost first; equal ones are one object, which keeps files small."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        strings, frames = recording.strings, recording.frames
        self.frames: list[Frame] = [
            {"name": strings[function], "filename": strings[file], "line": line}
            for function, file, line in zip(
                frames.function.tolist(), frames.file.tolist(), frames.line.tolist(), strict=True
            )
        ]
        calls = recording.calls
        self.call_frame, self.call_parent = calls.frame.tolist(), calls.parent.tolist()
        self.call_function, self.call_kind = calls.function.tolist(), calls.kind.tolist()
        self.inline_frame = recording.ops.inline_frame.tolist()
        self.of_call: dict[tuple[int, int], list[Frame]] = {}
        self.of_rows: dict[tuple[int, ...], list[Frame]] = {}

    def of_allocation(self, allocation: int) -> list[Frame]:
        """Frames of an allocation; none where no Python code was running, as on autograd's own threads."""
        if allocation < 0:
            return []
        allocations = self.recording.allocations
        call, op = int(allocations.call[allocation]), int(allocations.op[allocation])
        if call < 0:
            return []
        inner = -1
        if self.call_kind[call] != CallKind.C_FUNCTION:
            # No call of its own, as behind `a + b`: it runs in the called function, at the line seen last.
            inline = self.inline_frame[op] if op >= 0 else -1
            inner = inline if inline >= 0 else self.call_function[call]
        return self._stack(call, inner)

    def _stack(self, call: int, inner: int) -> list[Frame]:
        key = (call, inner)
        if key not in self.of_call:
            rows = [inner] if inner >= 0 else []
            while call >= 0:
                rows.append(self.call_frame[call])
                call = self.call_parent[call]
            frames = self.of_rows.get(tuple(rows))
            if frames is None:
                frames = self.of_rows[tuple(rows)] = [self.frames[row] for row in rows]
            self.of_call[key] = frames
        return self.of_call[key]

    def words_of(self, allocation: int) -> tuple[str, ...]:
        """Frames of the program's as text, innermost first: `forward (model.py:7)`."""
        frames = self.of_allocation(allocation)
        shown = [frames[at] for at in frames_of_program([frame["filename"] for frame in frames])]
        return tuple(f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in shown)


def stacks_of_rows(recording: Recording, peak: Peak, *, num_rows: int, num_frames: int) -> list[list[str] | None]:
    """The stack of most bytes, for each of a peak's largest rows.

    Returns:
        Frames as text, innermost first; None where no Python frame led to any block of the row.
    """
    stacks = PythonStacks(recording)
    totals: list[Counter[int]] = [Counter() for _ in peak.rows[:num_rows]]
    allocation_of: dict[int, int] = {}
    columns = (peak.row_of, peak.blocks.row, peak.blocks.size_bytes)
    for row, allocation, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        if row < len(totals) and (frames := stacks.of_allocation(allocation)):
            totals[row][id(frames)] += size_bytes  # equal stacks are one object, which lives as long as `stacks`
            allocation_of.setdefault(id(frames), allocation)
    stacks_by_row: list[list[str] | None] = [None] * len(peak.rows)
    for row, total in enumerate(totals):
        if total:
            ((largest, _),) = total.most_common(1)
            stacks_by_row[row] = list(stacks.words_of(allocation_of[largest])[:num_frames]) or None
    return stacks_by_row
