"""Origins by hand: code as Inductor writes it, in a file as Inductor names it, run under the profiler."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training_steps import record
from tracer.analysis.compiled.origins import CompiledOrigins, Origin, compiled_origins, with_lines_of_nodes
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.compiled_owners import with_compiled_owners
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import CompiledGraph, CompiledNode
from tracer.capture.sources.source_line import SourceLine

KIB = 1024
FORWARD = textwrap.dedent(
    """\
    import torch
    empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu

    def kernel(*args):
        pass

    def call(args):
        primals_1, = args
        buf0 = empty_strided_cpu((16, 1024), (1024, 1), torch.uint8)
        kernel(primals_1, buf0)
        buf1 = empty_strided_cpu((32, 1024), (1024, 1), torch.uint8)
        kernel(buf0, buf1)
        buf2 = buf0; del buf0  # reuse
        kernel(buf1, buf2)
        buf3 = empty_strided_cpu((64, 1024), (1024, 1), torch.uint8)
        kernel(buf2, buf3)
        del buf1
        return (buf3, primals_1, buf2)
    """
)
BACKWARD = textwrap.dedent(
    """\
    import torch
    empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu

    def kernel(*args):
        pass

    def call(args):
        primals_1, add, tangents_1 = args
        args.clear()
        buf0 = add; del add  # reuse
        kernel(tangents_1, buf0)
        buf1 = empty_strided_cpu((256, 1024), (1024, 1), torch.uint8)
        kernel(buf0, buf1)
        return (buf1,)
    """
)
USERS = "/home/somebody/net.py"


def node(name: str, line: int) -> CompiledNode:
    return CompiledNode(name, (SourceLine(USERS, line),), -1, f"blocks.{line}")


@dataclass
class Compiled:
    """A recording of the forward, and of the backward if there is one, and the graphs of both."""

    recording: Recording
    graphs: tuple[CompiledGraph, ...]

    def rows(self, size_kib: int) -> list[int]:
        return [
            row for row, size in enumerate(self.recording.allocations.size_bytes.tolist()) if size == size_kib * KIB
        ]

    def at(self, size_kib: int) -> CompiledOrigins:
        """At the moment when the block of this size was made."""
        (row,) = self.rows(size_kib)
        found = compiled_origins(self.recording, self.graphs, time_ns=int(self.recording.allocations.time_ns[row]))
        assert found is not None
        return found

    def origin(self, size_kib: int, *, at_kib: int) -> Origin:
        origins, (row,) = self.at(at_kib), self.rows(size_kib)
        return origins.origins[origins.row[row]]


def _load(path: Path, text: str) -> Any:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    folder = tmp_path_factory.mktemp("inductor")
    paths = [folder / text[:2] / f"c{text}.py" for text in ("ab" + "c" * 49, "de" + "f" * 49)]
    forward, backward = (_load(path, text) for path, text in zip(paths, (FORWARD, BACKWARD), strict=True))

    def step() -> None:
        given = torch.zeros(8 * KIB, dtype=torch.uint8)
        _, *saved = forward.call([given])
        args = [*saved, torch.zeros(4 * KIB, dtype=torch.uint8)]
        del saved
        backward.call(args)

    (results,) = record(step)
    nodes = (node("mul", 1), node("exp", 2), node("add", 3), node("sum", 4))
    graphs = (
        CompiledGraph(
            path=str(paths[0]),
            text=FORWARD,
            compile_id="0/0",
            num_outputs=1,
            nodes=nodes,
            buffers={"buf0": (0,), "buf1": (1, 0), "buf2": (2,), "buf3": (3,)},
            outputs=("sum", "primals_1", "add"),
        ),
        CompiledGraph(
            path=str(paths[1]),
            text=BACKWARD,
            compile_id="0/0",
            is_backward=True,
            nodes=(node("neg", 5), node("mm", 6)),
            buffers={"buf0": (0,), "buf1": (1,)},
            outputs=("mm",),
        ),
    )
    yield Compiled(with_lines_of_nodes(read_recording(results), graphs), graphs)


def test_a_buffer_has_the_line_of_its_node_and_those_that_were_fused(compiled: Compiled) -> None:
    origin = compiled.origin(32, at_kib=32)
    assert origin.words == "kernel, buf1, fused with 1 more"
    assert origin.line == (USERS, 2)
    assert origin.fused == (SourceLine(USERS, 1),)
    assert not origin.is_saved


def test_a_reused_buffer_is_what_it_holds_at_the_moment(compiled: Compiled) -> None:
    before, after = compiled.origin(16, at_kib=32), compiled.origin(16, at_kib=64)
    assert (before.op, before.line, before.is_saved) == ("kernel, buf0", (USERS, 1), False)
    assert (after.op, after.line, after.is_saved) == ("kernel, buf2", (USERS, 3), True)


def test_what_backward_puts_into_saved_memory_is_backwards(compiled: Compiled) -> None:
    taken = compiled.origin(16, at_kib=256)
    assert (taken.op, taken.line) == ("kernel, buf0", (USERS, 5))
    assert taken.is_taken_over and not taken.is_saved


def test_what_backward_computes_again_says_so(compiled: Compiled) -> None:
    forward, backward = compiled.graphs
    again = replace(backward.nodes[1], is_recomputed=True)
    changed = replace(compiled, graphs=(forward, replace(backward, nodes=(backward.nodes[0], again))))
    origin = changed.origin(256, at_kib=256)
    assert origin.is_recomputed and origin.words == "kernel, buf1, computed again"
    assert not compiled.origin(256, at_kib=256).is_recomputed
    assert not replace(origin, is_copy=True).is_recomputed, "an argument in another layout"
    assert not replace(origin, is_scratch=True).is_recomputed


def test_a_node_without_a_stack_does_not_get_the_line_of_the_region(compiled: Compiled) -> None:
    """One whose stack is in torch alone was made for the line that called the compiled code."""
    (row,) = compiled.rows(256)
    frames = []
    for has_stack in (True, False):
        forward, backward = compiled.graphs
        nodes = (backward.nodes[0], CompiledNode("mm", (), -1, "", has_stack=has_stack))
        changed = replace(compiled, graphs=(forward, replace(backward, nodes=nodes)))
        plain = attribute(changed.recording)
        found = with_compiled_owners(plain, changed.recording, changed.at(256), {})
        frames.append((int(found.allocation_frame[row]), int(plain.allocation_frame[row])))
    assert frames[0][0] == frames[0][1] >= 0
    assert frames[1][0] == -1


def test_what_no_generated_code_made_has_no_origin(compiled: Compiled) -> None:
    (row,) = compiled.rows(8)
    assert compiled.at(64).row[row] == -1


def test_a_graph_that_nobody_watched_names_buffers_and_no_line(compiled: Compiled) -> None:
    unwatched = replace(compiled, graphs=tuple(CompiledGraph(one.path, one.text) for one in compiled.graphs))
    origin = unwatched.origin(64, at_kib=64)
    assert (origin.op, origin.line, origin.is_saved) == ("kernel, buf3", None, False)


def test_where_the_code_is_gone_the_row_says_the_region(compiled: Compiled) -> None:
    origin = replace(compiled, graphs=()).origin(64, at_kib=64)
    assert (origin.op, origin.line) == ("compiled region", None)


def test_the_rows_of_the_peak_have_these_lines_and_modules(compiled: Compiled) -> None:
    peak = find_in_cycle(compiled.recording, graphs=compiled.graphs).peak
    rows = {row.bytes // KIB: row for row in peak.rows}
    assert (rows[256].file, rows[256].line, rows[256].module) == (USERS, 6, "blocks.6")
    assert (rows[16].file, rows[16].line, rows[16].module) == (USERS, 5, "blocks.5")
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes


def test_a_modules_name_is_the_models_where_it_is_known(compiled: Compiled) -> None:
    """Without a line where only the region is known, also where the region itself was called from one."""
    graphs = tuple(
        replace(graph, nodes=tuple(replace(one, module_id=5) for one in graph.nodes)) for graph in compiled.graphs
    )
    origins = replace(compiled, graphs=graphs).at(64)
    plain = attribute(compiled.recording)
    owned = with_compiled_owners(plain, compiled.recording, origins, {5: "net.block"})
    (row,) = compiled.rows(64)
    assert owned.modules[owned.allocation_module[row]] == "net.block"
    unknown = with_compiled_owners(plain, compiled.recording, replace(compiled, graphs=()).at(64), {})
    assert plain.allocation_frame[row] >= 0
    assert unknown.allocation_frame[row] == -1
    assert with_compiled_owners(plain, compiled.recording, None, {}) is plain


def test_frames_are_added_once(compiled: Compiled) -> None:
    assert with_lines_of_nodes(compiled.recording, compiled.graphs) is compiled.recording


def test_a_recording_without_compiled_code_has_no_origins() -> None:
    (results,) = record(lambda: torch.zeros(8))
    assert compiled_origins(read_recording(results), (), time_ns=0) is None
