"""Small modules of the room, and what torch.compile does while one looks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.pieces import Pieces
from tests.truth.isolate import value_in_fresh_process
from tracer import named_memory, profile_training
from tracer.capture.compile_watch import CompileWatch, _node
from tracer.capture.ignored_warnings import ignore, ignored
from tracer.capture.profiler.quiet_profiler import quiet_profiler, without_line
from tracer.capture.torch_names import step_words
from tracer.capture.torch_private import torch_compile, torch_cuda, torch_profiler
from tracer.capture.torch_private.torch_cuda import PeakCounters, extensions_on_cuda
from tracer.capture.torch_private.torch_modules import leave_unfilled
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.units import MIB

# ---- Warnings, names, peak counters, cuBLAS's workspaces, weights that are left unfilled, profilers that say nothing.


@pytest.fixture
def said() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        yield said


def test_a_warning_is_ignored_while_the_block_lasts(said: list[warnings.WarningMessage]) -> None:
    with ignored("slow"):
        warnings.warn("Slow, since nothing is compiled.", stacklevel=1)
        warnings.warn("Another one.", stacklevel=1)
    warnings.warn("Slow again.", stacklevel=1)
    assert [str(each.message) for each in said] == ["Another one.", "Slow again."]


def test_a_module_can_be_named(said: list[warnings.WarningMessage]) -> None:
    with ignored("slow", r"somebody\.else"):
        warnings.warn("Slow.", stacklevel=1)
    assert len(said) == 1


def test_an_equal_filter_of_the_programs_stays() -> None:
    with warnings.catch_warnings():
        end = ignore("slow")
        warnings.filterwarnings("ignore", message="slow")
        theirs = warnings.filters[0]
        end()
        end()
        assert theirs in warnings.filters
        end = ignore("slow", is_last=True)
        assert warnings.filters[-1][0] == "ignore"
        end()


def test_what_the_program_warned_of_before_a_session_is_not_said_again(
    said: list[warnings.WarningMessage], tmp_path: Path
) -> None:
    """Python says it once for each line, until somebody calls `filterwarnings`."""

    def step() -> None:
        warnings.warn("Deprecated.", stacklevel=1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    step()
    schedule = Schedule(0, 0, 1, 2)
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=schedule, screen="none") as session:
        for _ in range(schedule.num_steps):
            step()
            session.step()
    step()
    assert [str(each.message) for each in said if "Deprecated" in str(each.message)] == ["Deprecated."]


def test_a_block_is_a_region_of_the_profilers() -> None:
    @named_memory("rollout")
    def rollout(depth: int) -> None:
        torch.zeros(3)
        if depth:
            rollout(depth - 1)

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        rollout(2)
        named_memory("KV cache", torch.zeros(3))
    assert [event.count for event in recorded.key_averages() if event.key == "rollout"] == [3]


def test_an_exception_goes_on_its_way() -> None:
    with pytest.raises(KeyError), named_memory("rollout"):
        raise KeyError


STATS: dict[str, Any] = {
    "allocated_bytes": {"all": {"current": 2, "peak": 9}},
    "oversize_segments": {"current": 0, "peak": 4},
    "num_alloc_retries": 3,
    "reserved_bytes_by_private_pools": {(0, 1): {"all": {"current": 5, "peak": 7}}},
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The counters of an allocator, which a reset brings down to what is in use."""
    stats = deepcopy(STATS)

    def reset(device: int) -> None:
        for counter in (stats["allocated_bytes"]["all"], stats["oversize_segments"]):
            counter["peak"] = counter["current"]

    for name in ("_cuda_memoryStats", "_accelerator_getDeviceStats"):
        monkeypatch.setattr(torch._C, name, lambda device: deepcopy(stats), raising=False)
    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        monkeypatch.setattr(torch._C, name, reset, raising=False)
    return stats


def test_a_reset_of_ours_leaves_the_programs_peaks_and_private_pools(counted: dict[str, Any]) -> None:
    peaks = PeakCounters()
    peaks.reset(0)
    assert peaks.peak_bytes(0, "allocated_bytes") == 2
    assert torch._C._cuda_memoryStats(0) == STATS
    counted["allocated_bytes"]["all"]["peak"] = 6
    assert peaks.peak_bytes(0, "allocated_bytes") == 6


def test_a_reset_of_the_programs_leaves_ours(counted: dict[str, Any]) -> None:
    peaks = PeakCounters()
    peaks.reset(0)
    counted["allocated_bytes"]["all"]["peak"] = 6
    torch._C._cuda_resetPeakMemoryStats(0)
    assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 2
    assert peaks.peak_bytes(0, "allocated_bytes") == 6


SMALL_BYTES = 8_519_680


@pytest.mark.parametrize(
    ("version", "capability", "size_bytes"),
    [
        ((2, 11), (8, 0), SMALL_BYTES),
        ((2, 11), (9, 0), 32 * MIB),
        ((2, 11), (10, 0), SMALL_BYTES),
        ((2, 12), (8, 9), SMALL_BYTES),
        ((2, 12), (9, 0), 32 * MIB),
        ((2, 12), (10, 0), 32 * MIB),
    ],
)
def test_the_card_and_the_version_decide(
    version: tuple[int, int], capability: tuple[int, int], size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch_cuda, "TORCH", version)
    assert torch_cuda.workspace_bytes(capability) == size_bytes


def test_what_is_set_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:2")
    assert torch_cuda.workspace_bytes((9, 0)) == (16 * 8 + 4096 * 2) * 1024


def test_people_count_steps_from_one() -> None:
    assert step_words("ProfilerStep#2") == "step 3" and step_words("warm up") == "warm up"


FILLS = (
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.trunc_normal_,
    nn.init.xavier_normal_,
    nn.init.xavier_uniform_,
    nn.init.kaiming_normal_,
    nn.init.kaiming_uniform_,
    nn.init.orthogonal_,
    lambda tensor: nn.init.sparse_(tensor, 0.1),
)


@pytest.mark.parametrize("fill", FILLS)
def test_what_is_asked_for_is_left_as_it_is(fill: Callable[..., Tensor]) -> None:
    name = getattr(fill, "__name__", "")
    end = leave_unfilled(lambda tensor: tensor.shape[0] == 8)
    try:
        state = torch.get_rng_state()
        call: Any = getattr(nn.init, name, fill)
        large, small = torch.zeros(8, 4), torch.zeros(4, 4)
        assert call(large) is large and not large.any() and torch.equal(torch.get_rng_state(), state)
        assert call(small) is small and small.any()
    finally:
        end()
    assert getattr(nn.init, name, fill)(large).any()


def test_modules_of_torchs_own_draw_nothing() -> None:
    end = leave_unfilled(lambda tensor: True)
    try:
        state = torch.get_rng_state()
        nn.ModuleList([nn.Embedding(4, 4), nn.Linear(4, 4), nn.Conv1d(2, 2, 1), nn.LSTM(2, 2)])
        nn.MultiheadAttention(4, 2)
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        end()


def test_lines_with_the_words_are_left_out_and_all_others_come_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    with without_line(b"unknown size"):
        os.write(2, b"mine\n[W a.cpp:3] of unknown size, and more\nhalf ")
        os.write(2, b"a line")
    os.write(2, b"\nafter\n")
    assert capfd.readouterr().err == "mine\nhalf a line\nafter\n"


def test_what_was_written_is_there_though_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), without_line(b"unknown size"):
        os.write(2, b"mine\n")
        raise KeyError
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines()[-1] == "after"


def test_freeing_an_older_block_leaves_no_profiler_behind() -> None:
    for _ in range(2):
        torch_profiler.free_an_older_block()
    assert not torch._C._autograd._profiler_enabled()
    with torch.profiler.profile(profile_memory=True):
        torch_profiler.free_an_older_block()  # that of somebody else stays
        assert torch._C._autograd._profiler_enabled()


def test_parameters_that_are_no_leaves_are_recorded_without_a_warning() -> None:
    """As meta-learning has them: torch's tracer reads the gradient of every parameter of a module that is called."""
    model = nn.Linear(2, 2, bias=False)
    weight = torch.ones(2, 2, requires_grad=True) * 2
    del model.weight
    model._parameters["weight"] = weight  # type: ignore[assignment]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with quiet_profiler(), torch.profiler.profile(with_stack=True, profile_memory=True):
            model(torch.ones(1, 2)).sum().backward()
        assert not said
        assert weight.grad is None  # the program's own look
    assert len(said) == 1


# ---- Where torch's inside has another shape, the user's compilation goes on, and a note says what is missing.


def fail(*_: Any) -> Any:
    raise AttributeError("GraphLowering has no compile_to_module")


def test_a_torch_that_cannot_be_watched_is_a_fault_of_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CompileWatch()
    monkeypatch.setattr(torch_compile, "watch_inductor", fail)
    watch._compilation_begins()
    watch._compilation_begins()
    assert str(watch.fault) == "GraphLowering has no compile_to_module"
    watch.stop()


def test_a_graph_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    watch = CompileWatch()
    watch._lowered(SimpleNamespace(module=None), str(tmp_path / "generated.py"), 1)
    assert isinstance(watch.fault, AttributeError)


class HashableNode(SimpleNamespace):
    """As torch's are, by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def fx_node(name: str, *, users: tuple[Any, ...] = (), target: str = "aten.mm.default", **meta: Any) -> Any:
    stack = meta.pop("line", None)
    if stack is not None:
        meta["stack_trace"] = f'  File "/home/somebody/net.py", line {stack}, in forward\n    x\n'
    return HashableNode(name=name, op="call_function", target=target, args=(), users=users, meta=meta)


@pytest.mark.parametrize(
    ("is_backward", "tag", "target", "is_recomputed"),
    [
        (True, "is_forward", "aten.mm.default", True),
        (True, "is_backward", "aten.mm.default", False),
        (True, None, "aten.mm.default", False),
        (False, "is_forward", "aten.mm.default", False),
        # Views and parts of a result are no work.
        (True, "is_forward", "aten.view.default", False),
        (True, "is_forward", "<built-in function getitem>", False),
    ],
)
def test_what_of_forwards_stands_in_a_backward_graph_is_computed_again(
    is_backward: bool, tag: str | None, target: str, is_recomputed: bool
) -> None:
    node = fx_node("one", target=target, line=7, partitioner_tag=tag)
    node.args = (fx_node("given"),)
    assert _node(node, is_backward=is_backward).is_recomputed == is_recomputed


def test_a_node_that_a_pass_has_put_in_says_what_its_parts_say() -> None:
    """As dropout's, once its random state is kept: torch leaves the new node without a stack."""
    part = fx_node("getitem_1", target="<built-in function getitem>", line=7, partitioner_tag="is_forward")
    pair = fx_node("getitem", target="<built-in function getitem>", users=(part,))
    found = _node(fx_node("run_with_rng_state", users=(pair,)), is_backward=True)
    assert [line.line for line in found.lines] == [7]
    assert found.is_recomputed and found.has_stack
    alone = _node(fx_node("run_with_rng_state", users=(fx_node("mm", line=7),)), is_backward=True)
    assert (alone.lines, alone.has_stack) == ((), False)


@pytest.mark.parametrize("stack", ["nn_module_stack", "fwd_nn_module_stack"])
def test_a_node_of_torchs_own_modules_is_made_for_the_line_that_called_the_graph(stack: str) -> None:
    """Torch leaves out its own lines: what it knows of such a node are the modules around it."""
    node = fx_node("mm")
    node.meta[stack] = {"7@1": ("L['fn'].0", nn.Linear)}
    found = _node(node, is_backward=False)
    assert (found.lines, found.module, found.has_stack) == ((), "0", True)


def test_it_is_said_in_a_note() -> None:
    model = Pieces().model
    session = ProfileSession(nn.Sequential(model), schedule=Schedule(0, 1, 1, 1))
    assert not [note for note in session.notes if "torch.compile" in note]
    session.compile_watch.fault = AttributeError("no nodes")
    (note,) = (note for note in session.notes if "torch.compile" in note)
    assert note == (
        "What torch.compile generated could not be read, so its memory has the name of its region: "
        "AttributeError: no nodes"
    )


def told_apart() -> list[bool]:
    """Of a graph that torch.compile made, a model, a module with an attribute `meta` of its own, and a traced model."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    class Results(nn.Module):  # as Lightning's collection of results
        meta = object()

    model = nn.Linear(2, 2)
    torch.compile(model, backend=backend)(torch.ones(1, 2))
    modules = [graphs[0], model, Results(), torch.fx.symbolic_trace(model)]
    return [torch_compile.is_graph_of_compiler(module) for module in modules]


def test_graphs_that_torch_compile_made_are_told_from_models() -> None:
    """In a process of its own: hooks know whether anything was ever compiled in one."""
    assert value_in_fresh_process(told_apart) == [True, False, False, False]


@pytest.mark.parametrize(
    ("content", "is_one"), [(b"\x7fELF libc10_cuda.so", True), (b"\x7fELF libc10.so", False), (b"", False)]
)
def test_an_extension_that_links_torchs_cuda_library_is_found(
    content: bytes, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fast_kernels.so"
    path.write_bytes(content)
    module = ModuleType("fast_kernels")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "fast_kernels", module)
    assert ("fast_kernels" in extensions_on_cuda()) == is_one
