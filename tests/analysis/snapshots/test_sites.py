"""Which line of a stack is to blame: each class of frames that never is, and what decides without any."""

from __future__ import annotations

from pathlib import Path

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
from tests.snapshot.dumps import Row, entry, frame, snapshot
from tracer.analysis.snapshots.sites import Site, Sites
from tracer.exporters.snapshot_screen import place


class TestSites:
    def site(self, tmp_path: Path, frames: list[Row]) -> Site:
        loaded = load(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=frames)]))
        return Sites(loaded.stacks).site(int(loaded.devices[0].trace.stack[0]))

    def test_the_users_line_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, FORWARD) == Site("forward", "/home/me/model.py", 7)

    def test_without_a_users_line_torchs_own_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, [UNWIND, MALLOC, LINEAR]) == Site("linear", LINEAR["filename"], 20)

    def test_without_python_the_node_decides(self, tmp_path: Path) -> None:
        site = self.site(tmp_path, BACKWARD)
        assert site == Site("MmBackward0")
        assert place(site) == "MmBackward0  (no Python frame)"

    def test_without_a_node_the_operation_decides(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, [UNWIND, MALLOC, EMPTY, MUL, ENGINE]) == Site("mul_Tensor")

    def test_no_stack_is_said(self, tmp_path: Path) -> None:
        assert self.site(tmp_path, []) == Site("no stack recorded")

    def test_a_folder_called_torch_is_not_torch(self, tmp_path: Path) -> None:
        own = frame("go", "/home/me/torch/train.py", 3)
        assert self.site(tmp_path, [UNWIND, own, MAIN]) == Site("go", "/home/me/torch/train.py", 3)

    def test_windows_paths(self, tmp_path: Path) -> None:
        theirs = frame("linear", "C:\\py\\Lib\\site-packages\\torch\\nn\\functional.py", 5)
        own = frame("go", "D:\\work\\train.py", 3)
        assert self.site(tmp_path, [UNWIND, theirs, own]) == Site("go", "D:\\work\\train.py", 3)

    def test_generated_code_is_named_by_its_graph_and_the_line_that_called_it(self, tmp_path: Path) -> None:
        lines = [frame("call", "/tmp/torchinductor_me/ab/cabcdefghij.py", n) for n in (10, 20)]
        sites = [self.site(tmp_path, [UNWIND, line, LINEAR, MODEL, MAIN]) for line in lines]
        assert sites == [Site("forward, compiled graph cabcdefg", "/home/me/model.py", 7)] * 2
