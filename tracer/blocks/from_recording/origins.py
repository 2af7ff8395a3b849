"""Origin of memory in compiled regions: the buffer of every allocation, its kernel, its node and its lines.

What a buffer's storage holds changes by reuse, without an allocation, so all is said of one moment.

Shapes: A allocations and frees, C calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from tracer.arrays import Bool, Int, PerAllocation, PerCall
from tracer.blocks.from_recording.generated_code import END, Function, function_at, functions_of
from tracer.capture.recording import Frames, Recording
from tracer.capture.sources.compiled_code import CompiledGraph, CompiledNode, is_generated
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import COMPILED_CALL, COMPILED_FUNCTION, COMPILED_REGIONS

REGION = "compiled region"
_IN_NAMED_CODE = -2
_PACKAGES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Purpose of an allocation of a compiled region."""

    op: str  # The kernel and the buffer, or the region where no more is known
    node: CompiledNode | None = None  # The node that the buffer stands for, or None
    fused: tuple[SourceLine, ...] = ()  # Lines of the other nodes in it, without repetition
    graph: int = -1  # Row in the graphs, or -1
    is_saved: bool = False  # Whether the compiled forward hands it to backward
    is_scratch: bool = False  # Whether a kernel asked for it on its own account
    is_copy: bool = False  # Whether it is an argument in another layout: the node is that of the operator that reads it
    is_taken_over: bool = False  # Whether the compiled backward has put it where the forward had put what it saved

    @property
    def words(self) -> str:
        """The kernel and the buffer, whether it is computed again, and how many other lines were fused into it."""
        words = f"{self.op}, computed again" if self.is_recomputed else self.op
        return f"{words}, fused with {len(self.fused)} more" if self.fused else words

    @property
    def is_recomputed(self) -> bool:
        """True if the compiled backward computes this result of forward again."""
        return self.is_buffer and not self.is_copy and self.node is not None and self.node.is_recomputed

    @property
    def is_buffer(self) -> bool:
        """True if generated code has a name for the buffer."""
        return self.graph >= 0 and not self.is_scratch

    @property
    def line(self) -> SourceLine | None:
        """The innermost line of the node."""
        return self.node.lines[-1] if self.node is not None and self.node.lines else None


@dataclass(frozen=True, slots=True, eq=False)
class CompiledOrigins:
    """Allocations of compiled regions."""

    origins: tuple[Origin, ...]
    row: PerAllocation[Int]  # [A] Row in `origins`, or -1 for what is no compiled region's
    # [A] When the generated function that made it came to its end; -1 where there is none.
    invocation_end_ns: PerAllocation[Int]

    def column(self, name: str) -> PerAllocation[Bool]:
        """[A] a truth of the origins, by name."""
        values = np.array([*(getattr(origin, name) for origin in self.origins), False], np.bool_)
        return values[self.row]


def with_lines_of_nodes(recording: Recording, graphs: tuple[CompiledGraph, ...]) -> Recording:
    """The recording with a frame for every line that a compiled graph's nodes name; done again, it adds nothing."""
    lines = {line: None for graph in graphs for node in graph.nodes for line in node.lines}
    strings: dict[str, int] = {}
    for row, text in enumerate(recording.strings):
        strings.setdefault(text, row)
    frames = recording.frames
    known = set(zip(frames.file.tolist(), frames.line.tolist(), strict=True))
    added = [line for line in lines if (strings.get(line.file, -1), line.line) not in known]
    if not added:
        return recording
    texts = list(recording.strings)
    for text in ("", *(line.file for line in added)):
        if text not in strings:
            strings[text] = len(texts)
            texts.append(text)
    file = np.array([strings[line.file] for line in added], np.int64)
    files = {
        recording.strings[row]: bool(user) for row, user in zip(frames.file.tolist(), frames.user.tolist(), strict=True)
    }
    # A file that the recording does not have is the user's, unless it lies where packages do.
    is_users = [files.get(line.file, _PACKAGES.isdisjoint(re.split(r"[/\\]", line.file))) for line in added]
    new = Frames(
        file=np.concatenate([frames.file, file]),
        line=np.concatenate([frames.line, np.array([line.line for line in added], np.int64)]),
        function=np.concatenate([frames.function, np.full(len(added), strings[""], np.int64)]),
        user=np.concatenate([frames.user, np.array(is_users, np.bool_)]),
        own=np.concatenate([frames.own, np.zeros(len(added), np.bool_)]),
    )
    return replace(recording, strings=tuple(texts), frames=new)


def compiled_origins(
    recording: Recording, graphs: tuple[CompiledGraph, ...], *, time_ns: int
) -> CompiledOrigins | None:
    """Find the origin of every allocation in compiled regions; None where nothing compiled ran.

    Args:
        time_ns: The moment of which it is said what a storage holds.
    """
    regions = _regions(recording)
    generated = recording.is_text(is_generated)
    if not generated.any() and not regions.any():
        return None
    return _OriginFinder(recording, graphs, regions, generated, time_ns).origins()


def _regions(recording: Recording) -> PerAllocation[Bool]:
    """[A] whether a compiled graph was running: inside its autograd function, or in the span around its code."""
    ops, allocations, spans = recording.ops, recording.allocations, recording.spans
    is_graph = recording.is_text(lambda text: text.startswith(COMPILED_FUNCTION)).tolist()
    inside = np.zeros(len(ops.name) + 1, np.bool_)
    for row, (name, parent) in enumerate(zip(ops.name.tolist(), ops.parent.tolist(), strict=True)):  # parents first
        inside[row] = is_graph[name] or (parent >= 0 and inside[parent])
    in_region = inside[allocations.op]
    rows = recording.spans_named(COMPILED_CALL)
    for start_ns, end_ns in zip(spans.start_ns[rows].tolist(), spans.end_ns[rows].tolist(), strict=True):
        in_region |= (allocations.time_ns >= start_ns) & (allocations.time_ns <= end_ns)
    return in_region


class _OriginFinder:
    def __init__(
        self,
        recording: Recording,
        graphs: tuple[CompiledGraph, ...],
        regions: PerAllocation[Bool],
        is_generated_text: np.ndarray[tuple[int], np.dtype[np.bool_]],
        time_ns: int,
    ) -> None:
        self.recording, self.regions, self.time_ns = recording, regions, time_ns
        self.graphs = {graph.path: (row, graph) for row, graph in enumerate(graphs)}
        self.is_generated_frame = np.append(is_generated_text[recording.frames.file], False)
        allocations, calls = recording.allocations, recording.calls
        freed = allocations.size_bytes < 0
        times = zip(allocations.allocation_id[freed].tolist(), allocations.time_ns[freed].tolist(), strict=True)
        self.freed_ns = dict(times)
        self.invocations: dict[str, list[int]] = {}
        for row in np.flatnonzero(self.is_generated_frame[calls.function]).tolist():
            file = recording.strings[recording.frames.file[calls.function[row]]]
            self.invocations.setdefault(file, []).append(row)
        self.now: dict[int, int] = {}
        self.found: dict[Origin, int] = {}

    def origins(self) -> CompiledOrigins:
        """Origin of every allocation in compiled code."""
        recording, calls = self.recording, self.recording.calls
        inner = self._generated_calls()
        allocations = recording.allocations
        call = np.where(allocations.call >= 0, inner[allocations.call], -1)
        row = np.full(len(call), -1, np.int64)
        ends = np.full(len(call), -1, np.int64)
        for at in np.flatnonzero(((call >= 0) | self.regions) & (allocations.size_bytes > 0)).tolist():
            if call[at] >= 0:
                invocation = int(calls.parent[call[at]])
                ends[at] = calls.end_ns[invocation] if invocation >= 0 else -1
                origin = self._origin(int(call[at]), invocation, at)
            elif self._is_in_named_code(int(allocations.op[at]), int(inner[allocations.call[at]])):
                continue
            else:
                origin = Origin(self._region_of(int(allocations.op[at])))
            row[at] = self.found.setdefault(origin, len(self.found))
        return CompiledOrigins(tuple(self.found), row, ends)

    def _generated_calls(self) -> PerCall[Int]:
        """[C] the innermost call around each that generated code makes itself.

        -1 is none. Python code of the user's or of a library may run inside, whose lines those are then: its innermost
        call is counted down from _IN_NAMED_CODE.
        """
        calls, frames = self.recording.calls, self.recording.frames
        is_named = self.recording.is_text(lambda text: text.startswith(("/", "\\")) or text[1:2] == ":")
        named = np.append(is_named[frames.file] & ~self.is_generated_frame[:-1], False)
        inner = [-1] * (len(calls.kind) + 1)
        rows = zip(calls.parent.tolist(), calls.frame.tolist(), strict=True)
        for row, (parent, frame) in enumerate(rows):  # parents first
            inner[row] = inner[parent] if parent >= 0 else -1
            if self.is_generated_frame[frame]:
                inner[row] = row
            elif named[frame]:
                inner[row] = _IN_NAMED_CODE - row
        return np.array(inner, np.int64)

    def _origin(self, call: int, invocation: int, allocation: int) -> Origin:
        recording = self.recording
        made_ns = int(recording.allocations.time_ns[allocation])
        frame = int(recording.calls.frame[call])
        path, line = recording.strings[recording.frames.file[frame]], int(recording.frames.line[frame])
        number, graph = self.graphs.get(path, (-1, None))
        function = function_at(functions_of(graph.text), line) if graph is not None else None
        name = function.made_at(line) if function is not None else None
        if graph is None or function is None or name is None:
            return Origin(self._region_of(int(recording.calls.op[call])))
        # Of what is made later it is said what it comes to hold.
        now = max(line, self._line_now(invocation)) if made_ns <= self.time_ns else END
        is_scratch = function.is_scratch(line)
        content = name if is_scratch else function.holds(name, now)
        origin = _described(graph, number, function, content, is_scratch=is_scratch)
        freed_ns = self.freed_ns.get(int(recording.allocations.allocation_id[allocation]), END)
        if origin.is_saved and made_ns <= self.time_ns < freed_ns:
            return self._taken_over(graph, function, content, made_ns) or origin
        return origin

    def _taken_over(self, graph: CompiledGraph, function: Function, name: str, made_ns: int) -> Origin | None:
        """Find what the compiled backward has put into a saved buffer by the moment, as it reuses memory."""
        # The compiled backward's name of a buffer that forward hands to it is that of the returned node.
        shown = function.shown_by(name)
        outputs = enumerate(zip(function.returned, graph.outputs, strict=False))
        saved = next((node for at, (output, node) in outputs if at >= graph.num_outputs and output in shown), "")
        for path, (number, backward) in self.graphs.items():
            if not backward.is_backward or backward.compile_id != graph.compile_id:
                continue
            calls = self.recording.calls
            rows = [row for row in self.invocations.get(path, ()) if made_ns < calls.start_ns[row] <= self.time_ns]
            if not rows:
                continue
            first_line = int(self.recording.frames.line[calls.function[rows[0]]])
            inner = function_at(functions_of(backward.text), first_line)
            if inner is None or saved not in inner.parameters:
                continue
            content = inner.holds(saved, self._line_now(rows[0]), is_written=True)
            if content != saved:
                return replace(_described(backward, number, inner, content, is_scratch=False), is_taken_over=True)
        return None

    def _is_in_named_code(self, op: int, inner: int) -> bool:
        """Return True if a compiled graph has called Python code of the user or a library that made the block."""
        ops = self.recording.ops
        region_call = -1
        while op >= 0:
            if self.recording.strings[ops.name[op]].startswith(COMPILED_FUNCTION):
                region_call = int(ops.call[op])
            op = int(ops.parent[op])
        return inner <= _IN_NAMED_CODE and _IN_NAMED_CODE - inner > region_call >= 0

    def _region_of(self, op: int) -> str:
        """The outermost of torch's names for the region that an operator is in."""
        ops, name = self.recording.ops, REGION
        while op >= 0:
            text = self.recording.strings[ops.name[op]]
            name = text if text.startswith(COMPILED_REGIONS) else name
            op = int(ops.parent[op])
        return name

    def _line_now(self, invocation: int) -> int:
        """The line that a generated function has come to at the moment; behind its last where it has ended."""
        if invocation not in self.now:
            calls, frames = self.recording.calls, self.recording.frames
            if invocation < 0 or calls.end_ns[invocation] < self.time_ns:
                self.now[invocation] = END
            else:
                rows = np.flatnonzero((calls.parent == invocation) & (calls.start_ns <= self.time_ns))
                self.now[invocation] = int(frames.line[calls.frame[rows[-1]]]) if len(rows) else 0
        return self.now[invocation]


def _described(graph: CompiledGraph, number: int, function: Function, name: str, *, is_scratch: bool) -> Origin:
    kernel = function.kernel_of(name)
    made_of = graph.buffers.get(name, ())
    copied_for = None
    if not made_of:
        # A copy of an argument in another layout has no node of its own: it is made for the operator that reads it.
        copied_for = next((source for source in function.made_from(name) if graph.buffers.get(source)), None)
        made_of = graph.buffers[copied_for][:1] if copied_for is not None else ()
    node = graph.nodes[made_of[0]] if made_of else None
    line = node.lines[-1:] if node is not None else ()
    others = (graph.nodes[row].lines[-1:] for row in made_of[1:])
    fused = tuple({other[0]: None for other in others if other and other != line})
    saved_names = set(function.returned[graph.num_outputs :]) if graph.num_outputs >= 0 else set()
    description = f"scratch of {kernel}" if is_scratch else f"{kernel}, {name}" if kernel else name
    description += f", a copy for {function.kernel_of(copied_for)}" if copied_for is not None else ""
    shown_as = function.items_of(name) or (name,)
    is_saved = not is_scratch and all(saved_names & function.shown_by(shown) for shown in shown_as)
    return Origin(description, node, fused, number, is_saved, is_scratch, copied_for is not None)
