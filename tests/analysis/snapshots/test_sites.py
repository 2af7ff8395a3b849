"""Which line of a stack is to blame: each class of frames that never is, and what decides without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import (
    BACKWARD,
    BASE,
    EMPTY,
    ENGINE,
    FORWARD,
    LINEAR,
    MAIN,
    MALLOC,
    MODEL,
    MUL,
    UNWIND,
    load,
)
from tests.snapshot.dumps import Row, block, entry, frame, segment, snapshot
from tracer.analysis.snapshots.sites import Site, Sites, pool_words, pools_of_graphs
from tracer.exporters.history_sections import place

GENERATED = "/tmp/torchinductor_me/ab/cabcdefghij.py"
RUN = frame("run", "/py/site-packages/torch/_inductor/output_code.py", 466)


OWN = frame("go", "/home/me/torch/train.py", 3)
WINDOWS = frame("linear", "C:\\py\\Lib\\site-packages\\torch\\nn\\functional.py", 5)
# torch puts a node's own lines between the generated code and what runs that.
NODE = [LINEAR, frame("gelu", "/home/me/mlp.py", 5), frame("block", "/home/me/mlp.py", 9)]
CALLED = [frame("call", GENERATED, 10), RUN, MODEL, MAIN]
OF_STACKS: dict[str, tuple[list[Row], Site]] = {
    "the user's line": (FORWARD, Site("forward", "/home/me/model.py", 7)),
    "torch's own without one": ([UNWIND, MALLOC, LINEAR], Site("linear", LINEAR["filename"], 20)),
    "the node without Python": (BACKWARD, Site("MmBackward0")),
    "the operation without a node": ([UNWIND, MALLOC, EMPTY, MUL, ENGINE], Site("mul_Tensor")),
    "no stack": ([], Site("no stack recorded")),
    "a folder called torch": ([UNWIND, OWN, MAIN], Site("go", "/home/me/torch/train.py", 3)),
    "Windows": ([UNWIND, WINDOWS, frame("go", "D:\\work\\train.py", 3)], Site("go", "D:\\work\\train.py", 3)),
    "a node's own line in generated code": (
        [UNWIND, CALLED[0], *NODE, *CALLED[1:]],
        Site("gelu, compiled graph cabcdefg", "/home/me/mlp.py", 5),
    ),
    "what generated code calls of the user's": (
        [UNWIND, frame("my_op", "/home/me/ops.py", 3), *CALLED],
        Site("my_op, compiled graph cabcdefg", "/home/me/ops.py", 3),
    ),
}


class TestSites:
    def site(self, tmp_path: Path, frames: list[Row]) -> Site:
        loaded = load(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=frames)]))
        return Sites(loaded.stacks).site(int(loaded.devices[0].trace.stack[0]))

    @pytest.mark.parametrize(("frames", "expected"), OF_STACKS.values(), ids=OF_STACKS)
    def test_one_frame_decides(self, tmp_path: Path, frames: list[Row], expected: Site) -> None:
        assert self.site(tmp_path, frames) == expected

    def test_without_python_there_is_no_place(self, tmp_path: Path) -> None:
        assert place(self.site(tmp_path, BACKWARD)) == "MmBackward0  (no Python frame)"

    def test_where_only_the_region_is_known_the_row_says_so(self, tmp_path: Path) -> None:
        """Generated code without a node's lines is named by its graph; the line is the one that called it."""
        lines = [frame("call", GENERATED, n) for n in (10, 20)]
        for behind in ([RUN, MODEL, MAIN], [MODEL, MAIN]):
            sites = [self.site(tmp_path, [UNWIND, line, *behind]) for line in lines]
            assert sites == [Site("compiled graph cabcdefg, called in forward", "/home/me/model.py", 7)] * 2

    def test_the_original_lines_of_torch_fx_decide(self, tmp_path: Path) -> None:
        """As `_snapshot(augment_with_fx_traces=True)` writes them, outermost first."""
        lines = ((9, "block"), (5, "gelu"))
        trace = "".join(f'  File "/home/me/mlp.py", line {line}, in {name}\n    code\n' for line, name in lines)
        fx = frame("forward", "fx_generated__a1b2c3.py", 4) | {"fx_node_name": "gelu_1", "fx_original_trace": trace}
        site = self.site(tmp_path, [UNWIND, fx, RUN, MODEL, MAIN])
        assert site == Site("gelu, compiled graph a1b2c3", "/home/me/mlp.py", 5)
        loaded = load(tmp_path / "t", snapshot([entry("alloc", BASE, 1, frames=[fx, RUN, MAIN])]))
        assert [one.split(" (")[0] for one in Sites(loaded.stacks).readable(int(loaded.devices[0].trace.stack[0]))] == [
            "forward, node gelu_1", "gelu", "block", "run", "main"
        ]  # fmt: skip

    def test_a_compiled_region_is_said_where_no_python_is(self, tmp_path: Path) -> None:
        for frames, site in (
            ([], Site("Torch-Compiled Region: 0/0")),
            ([UNWIND, MALLOC, EMPTY, MUL, ENGINE], Site("mul_Tensor, Torch-Compiled Region: 0/0")),
            ([MODEL, MAIN], Site("Torch-Compiled Region: 0/0, called in forward", "/home/me/model.py", 7)),
        ):
            inside = entry("alloc", BASE, 1, frames=frames) | {"compile_context": "Torch-Compiled Region: 0/0"}
            outside = entry("alloc", BASE + 512, 1, frames=frames) | {"compile_context": "N/A"}
            loaded = load(tmp_path / "s", snapshot([inside, outside]))
            found = [Sites(loaded.stacks).site(stack) for stack in loaded.devices[0].trace.stack.tolist()]
            assert found[0] == site
            assert "Region" not in found[1].frame


CAPTURE = frame("_record", "/py/site-packages/torch/_inductor/cudagraph_trees.py", 5)


@pytest.mark.parametrize(
    ("name", "is_of_graphs", "words"),
    [
        ("2,0", False, "private pool 2,0 of a CUDA graph"),
        ("0,5", True, "private pool 0,5 of CUDA graphs"),
        ("0,5", False, "private pool 0,5"),
        ("1,1", False, "private pool 1,1"),
    ],
)
def test_words(name: str, is_of_graphs: bool, words: str) -> None:
    assert pool_words(name, is_of_graphs=is_of_graphs) == words


@pytest.mark.parametrize("names_pools", [True, False])
def test_a_pool_is_of_graphs_if_one_was_recorded_in_it(tmp_path: Path, names_pools: bool) -> None:
    """By entries that name their pool, or by the blocks in its segments; the default pool is none."""
    trace: list[Row] = []
    segments: list[Row] = []
    for number, (pool, frames) in enumerate({(0, 5): [CAPTURE], (0, 6): FORWARD, (0, 0): [CAPTURE]}.items()):
        at = BASE + 4096 * number
        if names_pools:
            trace.append(entry("alloc", at, 512, frames=frames) | {"pool_id": pool})
        else:
            segments.append(segment(at, 4096, [block(at, 512, frames=frames)]) | {"segment_pool_id": pool})
    loaded = load(tmp_path / "s", snapshot(trace, segments))
    found = pools_of_graphs(loaded.devices[0], Sites(loaded.stacks))
    assert [loaded.text(number) for number in found] == ["0,5"]
