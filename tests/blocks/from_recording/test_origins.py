"""Generated code as text, the origins of what it allocates, and programs that torch compiles."""

from __future__ import annotations

import importlib.util
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.compiled_programs import WITHOUT_INDUCTOR, Block
from tests.processes import run_python
from tests.skips import by_default
from tests.training_steps import record
from tracer.answers.recording_findings import find_in_cycle
from tracer.blocks.from_recording.attribution import attribute
from tracer.blocks.from_recording.compiled_owners import with_compiled_owners
from tracer.blocks.from_recording.generated_code import END, Function, function_at, functions_of
from tracer.blocks.from_recording.origins import CompiledOrigins, Origin, compiled_origins, with_lines_of_nodes
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import CompiledGraph, CompiledNode
from tracer.capture.sources.source_line import SourceLine

# ---- Origins by hand: code as Inductor writes it, in a file as Inductor names it, run under the profiler.
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


# ---- Generated code is read as it runs: what a line makes, what a storage holds after reuse, which kernel writes it.
# As Inductor writes it; the lines of `call` are numbered from 1 in the comments.
INDUCTOR = textwrap.dedent(
    """\
    def call(self, args):                                                   # 1
        primals_1, primals_2 = args                                         # 2
        args.clear()                                                        # 3
        assert_size_stride_grouped((primals_1,), ((8, 4),), ((4, 1),))      # 4
        with torch.cuda._DeviceGuard(0):                                    # 5
            buf0 = empty_strided_cpu((8, 4), (4, 1), torch.float32)         # 6
            # [Provenance debug handles] extern_kernels.addmm:1             # 7
            extern_kernels.addmm(primals_2, reinterpret_tensor(primals_1, (8, 4), (4, 1), 0), out=buf0)  # 8
            buf1 = empty_strided_cpu((8, 4), (4, 1), torch.float32)         # 9
            buf2 = buf1; del buf1  # reuse                                  # 10
            cpp_fused_gelu_0(buf0, buf2)                                    # 11
            buf3 = reinterpret_tensor(buf0, (4, 8), (8, 1), 0); del buf0  # reuse   # 12
            triton_poi_fused_add_1.run(buf3, buf2, 32, stream=stream0)      # 13
            buf4 = torch.ops.aten.topk.default(buf2, 2)                     # 14
            buf5 = buf4[0]                                                  # 15
            del buf4                                                        # 16
        return (reinterpret_tensor(buf3, (8, 4), (4, 1), 0), primals_1, buf2, buf5, 7)    # 17
    """
)


def call() -> Function:
    (function,) = functions_of(INDUCTOR)
    return function


@pytest.mark.parametrize(
    ("line", "name"),
    [(6, "buf0"), (9, "buf1"), (14, "buf4"), (8, "buf0"), (13, "buf2"), (2, None), (4, None), (10, None)],
)
def test_a_line_makes_what_it_assigns_or_what_its_kernel_writes(line: int, name: str | None) -> None:
    assert call().made_at(line) == name


def test_memory_that_a_kernel_asks_for_by_itself_is_scratch() -> None:
    assert [line for line in range(1, 18) if call().is_scratch(line)] == [3, 8, 11, 13]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("buf0", "extern_kernels.addmm"),
        ("buf2", "cpp_fused_gelu_0"),
        ("buf3", "triton_poi_fused_add_1"),
        ("buf4", "torch.ops.aten.topk"),
        ("buf9", None),
    ],
)
def test_the_first_kernel_that_is_given_a_buffer_writes_it(name: str, kernel: str | None) -> None:
    assert call().kernel_of(name) == kernel


def test_a_view_takes_nothing_over() -> None:
    text = textwrap.dedent(
        """\
        def call(args):
            buf2 = empty_strided_cpu((4, 3), (3, 1), torch.float32)
            buf0 = reinterpret_tensor(buf2, (4, 1), (3, 1), 0)  # alias
            cpp_fused_cat_0(primals_1, buf0)
            buf3 = torch.ops.aten.permute.default(buf2, [1, 0])
            buf4 = empty_strided_cpu((4, 3), (3, 1), torch.float32)
            buf4.copy_(buf3, False)
            return (buf3, )
        """
    )
    (function,) = functions_of(text)
    assert function.holds("buf2", END) == "buf2"
    assert function.shown_by("buf2") == {"buf2", "buf0", "buf3"}
    assert function.shown_by("buf4") == {"buf4"}
    assert function.kernel_of("buf4") == "copy_"


def test_what_is_returned_and_given_is_named_by_its_storage() -> None:
    assert call().returned == ("buf3", "primals_1", "buf2", "buf5", "")
    assert call().items_of("buf4") == ("buf5",)
    assert call().parameters == ("args", "primals_1", "primals_2")


def test_graphs_that_python_runs_have_the_same_form() -> None:
    text = textwrap.dedent(
        """\
        def forward(self, primals_1, primals_2):
            addmm = torch.ops.aten.addmm.default(primals_1, primals_2, primals_2);  primals_1 = None
            view = torch.ops.aten.view.default(addmm, [4]);  addmm = None
            return (view, primals_2)
        """
    )
    (function,) = functions_of(text)
    assert function.made_at(2) == "addmm"
    assert function.kernel_of("addmm") == "torch.ops.aten.addmm"
    assert function.holds("addmm", END) == "addmm"
    assert function.returned == ("view", "primals_2")


def test_the_innermost_function_around_a_line_is_meant() -> None:
    text = "def outer():\n    def inner():\n        buf0 = empty_strided_cpu(1)\n    return inner\n"
    functions = functions_of(text)
    assert [function_at(functions, line) for line in (1, 3, 4, 9)] == [*functions, functions[0], None]


@pytest.mark.parametrize("text", ["", "def", "\0", "x = 1"])
def test_what_is_no_python_has_no_functions(text: str) -> None:
    assert functions_of(text) == ()


class Machine:
    """Runs the statements one by one, as naively as can be: which name shows each storage."""

    def __init__(self) -> None:
        self.shows: dict[int, str] = {}

    def run(self, statements: list[tuple[str, str]]) -> None:
        for action, name in statements:
            if action == "alloc":
                self.shows[len(self.shows)] = name
            elif action != "write":
                (storage,) = [one for one, shown in self.shows.items() if shown == action]
                self.shows[storage] = name


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Allocations, kernels that write each new name, and reuses; every name is written before it is reused."""
    statements: list[tuple[str, str]] = []
    alive: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        name = f"buf{number}"
        old = draw(st.sampled_from(alive)) if alive and draw(st.booleans()) else None  # type: ignore[arg-type]
        if old is not None:
            alive.remove(old)
        statements += [("alloc" if old is None else old, name), ("write", name)]
        alive.append(name)
    return statements


@given(programs(), st.data())
def test_any_chain_of_reuses_is_followed_as_running_it_would(
    statements: list[tuple[str, str]], data: st.DataObject
) -> None:
    lines = []
    for action, name in statements:
        if action == "alloc":
            lines.append(f"    {name} = empty_strided_cpu((1,), (1,), torch.float32)")
        elif action == "write":
            lines.append(f"    kernel({name})")
        else:
            lines.append(f"    {name} = {action}; del {action}  # reuse")
    (function,) = functions_of("\n".join(["def call(args):", *lines]))
    now = data.draw(st.integers(0, len(statements) - 1))
    machine = Machine()
    machine.run(statements[: now + 1])
    allocated = [name for action, name in statements[: now + 1] if action == "alloc"]
    assert [function.holds(name, now + 2) for name in allocated] == list(machine.shows.values())


ROOT = Path(__file__).resolve().parents[3]
# Two of the others are in OTHERS through AOTAutograd alone.
INDUCTORS = ["resnet", "fno", "step_function", "checkpointed"]
FIRST = inspect.getsourcelines(Block.forward)[1]
BLOCK = (FIRST + 1, FIRST + 2, FIRST + 3)
# The slow ones say what the others say, of more graphs or of one alone.
OTHERS = by_default([one.__name__ for one in WITHOUT_INDUCTOR], {"checkpointed_eager"})
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in INDUCTORS]


@cache
def figures(name: str) -> dict[str, Any]:
    done = run_python("-m", "tests.compiled_programs", name, folder=ROOT, limit_s=600)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module", params=[*OTHERS, *SLOW])
def one(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The figures of a program; all tests of it follow each other, so that it runs once."""
    return figures(request.param)


def test_rows_sum_to_the_peak(one: dict[str, Any]) -> None:
    assert one["rows_bytes"] == one["peak_bytes"]
    assert one["unexplained_bytes"] == 0


def test_what_compiled_regions_hold_at_the_peak_has_a_line_and_a_module(one: dict[str, Any]) -> None:
    sizes = one["bytes"]
    assert sizes["with_line"] >= 0.95 * sizes["compiled"]
    assert sizes["with_module"] >= 0.95 * sizes["in_module"]
    assert (sizes["compiled"] > 0) == (one["name"] != "optimizer_step")


def test_every_line_allocates_without_compiling_too(one: dict[str, Any]) -> None:
    assert one["lines_not_in_eager"] == []
    assert one["watch_fault"] == "None"


def test_the_engine_is_torchs_timeline(one: dict[str, Any]) -> None:
    assert one["is_torchs_timeline"]


@pytest.mark.parametrize("one", SLOW, indirect=True)
def test_what_is_said_to_be_saved_is_what_autograd_saves(one: dict[str, Any]) -> None:
    assert one["said_saved_bytes"] > 0
    assert one["said_and_not_saved"] == []
    assert one["saved_and_no_activation"] == []


def test_inputs_are_the_batch_and_nothing_else(one: dict[str, Any]) -> None:
    assert 0 < one["input_bytes"] <= one["batch_bytes"]


def test_no_module_has_the_name_of_a_wrapper(one: dict[str, Any]) -> None:
    words = ("_orig_mod", "OptimizedModule", "GraphModule")
    assert [path for path in (*one["modules"], *one["known_names"]) if any(word in path for word in words)] == []


def test_a_kept_recording_says_the_same(one: dict[str, Any]) -> None:
    assert one["report_is_same"]


@pytest.mark.parametrize(
    "one", ["checkpointed_eager", pytest.param("checkpointed", marks=pytest.mark.slow)], indirect=True
)
def test_what_backward_computes_again_has_the_lines_of_its_blocks(one: dict[str, Any]) -> None:
    """Lines computed again without compiling, and the last line, before which torch.utils.checkpoint ends."""
    first, second, _ = BLOCK
    assert {first, second} == set(one["again_in_eager"])
    assert set(one["again"]) <= set(BLOCK)
    assert one["again"]
    if one["name"] == "checkpointed_eager":  # Inductor fuses some of it into what is backward's
        assert {first, second} <= set(one["again"])


@pytest.mark.slow
def test_a_model_that_was_compiled_before_says_what_it_lacks() -> None:
    """Its generated code is there, and no line: only the lines' reason and remedy."""
    one = figures("compiled_before")
    assert one["bytes"]["with_line"] == 0
    assert any("torch.compiler.reset()" in sentence for sentence in one["sentences"])


@pytest.mark.parametrize("one", SLOW, indirect=True)
def test_the_generated_code_is_the_same_but_for_comments(one: dict[str, Any]) -> None:
    assert one["is_same_code"]


@pytest.mark.parametrize("one", OTHERS, indirect=True)
def test_all_is_put_back(one: dict[str, Any]) -> None:
    assert one["left_behind"] == []
