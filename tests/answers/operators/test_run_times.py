"""Forward and backward time of every invocation: by hand, against a plain loop, and that no nanosecond is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.histories import NOTHING
from tests.skips import by_default
from tests.training_steps import (
    ONE_OF_EACH,
    REPORT_QUICK,
    REPORT_WORKLOADS,
    WORKLOADS,
    Recorded,
    mlp,
    mlp_batch,
    record,
    recorded_workload,
)
from tracer.answers.operators.invocations import OpInstances, op_instances, short_op_name
from tracer.answers.operators.run_times import RunTimeRow, instance_times, kernel_times, run_times
from tracer.blocks.from_recording.attribution import Attribution, attribute
from tracer.blocks.table import Phase
from tracer.capture.profiler.event_tree import read_kernels, read_recording
from tracer.capture.recording import (
    Allocations,
    Kernels,
    OpKind,
    Ops,
    Recording,
    Spans,
)
from tracer.capture.torch_private.torch_profiler import HOST_DEVICE_TYPE
from tracer.errors import RecordingError

NAMES = by_default([*WORKLOADS, *REPORT_WORKLOADS], {*ONE_OF_EACH, *REPORT_QUICK})
Cycles = list[tuple[Recording, Attribution]]


@cache
def cycles(name: str) -> Cycles:
    model = recorded_workload(name).workload.model
    names = {id(module): path for path, module in model.named_modules()} if model is not None else {}
    return [(recording, attribute(recording, module_names=names)) for recording in recorded_workload(name).recordings]


@cache
def times(name: str) -> tuple[RunTimeRow, ...]:
    return run_times(cycles(name))


# --------------------------------------------------------------------------------------------------------- by hand
def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


def _table(kind: Any, **columns: Any) -> Any:
    length = max((len(column) for column in columns.values()), default=0)
    return kind(**{name: columns.get(name, np.zeros(length, np.int64)) for name in kind.__dataclass_fields__})


def by_hand() -> tuple[Recording, Attribution]:
    """One step on one thread. Times in ns; indentation is nesting.

    10-30   linear     makes node 1       100-110 engine: node 3
    35-36   view       makes nothing      115-145 engine: node 2, a checkpoint
    40-50   Block      makes node 2         120-135 engine: node 4, of the recomputed tanh
      42-48 tanh       in a module          118-119 tanh, recomputed
    60-90   mse_loss   makes node 3       150-153 engine: node 1
    """
    strings = ("aten::linear", "aten::view", "Block", "aten::tanh", "aten::mse_loss", "engine", "ProfilerStep#0", "")
    rows = [
        # name, kind, parent, start, end, number, node, forward, module
        (0, OpKind.OPERATOR, -1, 10, 30, 1, -1, -1, 0),
        (1, OpKind.OPERATOR, -1, 35, 36, 2, -1, -1, 0),
        (2, OpKind.OPERATOR, -1, 40, 50, 2, -1, -1, 0),
        (3, OpKind.OPERATOR, 2, 42, 48, -1, -1, -1, 1),
        (4, OpKind.OPERATOR, -1, 60, 90, 3, -1, -1, -1),
        (5, OpKind.ENGINE, -1, 100, 110, 3, 5, 4, -1),
        (5, OpKind.ENGINE, -1, 115, 145, 2, 6, 2, 0),
        (5, OpKind.BACKWARD_NODE, 6, 116, 144, 2, 7, 2, 0),
        (3, OpKind.OPERATOR, 7, 118, 119, 4, 7, 2, 1),
        (5, OpKind.ENGINE, 7, 120, 135, 4, 9, 8, 1),
        (5, OpKind.ENGINE, -1, 150, 153, 1, 10, 0, 0),
    ]
    name, kind, parent, start, end, number, node, forward, module = (
        _ints(*column) for column in zip(*rows, strict=True)
    )
    none = np.full(len(rows), -1, np.int64)
    ops = Ops(name, kind, parent, none, start, end, number, np.zeros(len(rows), np.int64), none, none * 0, none)
    # linear, the function, tanh, the loss and node 1 make memory.
    made = _ints(0, 2, 3, 4, 10)
    recording = replace(
        NOTHING,
        strings=strings,
        shapes=((),),
        allocations=_table(
            Allocations, op=made, size_bytes=_ints(64, 64, 64, 4, 64), time_ns=start[made] + 1,
            assumed=np.zeros(5, bool), key=none[:5], call=none[:5],
        ),
        ops=ops,
        spans=Spans(_ints(6), _ints(0), _ints(200), _ints(0)),
        num_events=len(rows),
    )  # fmt: skip
    phase = np.where(node >= 0, int(Phase.BACKWARD), int(Phase.FORWARD))
    step = np.zeros(len(rows), np.int64)
    columns: dict[str, Any] = {column: _ints() for column in Attribution.__dataclass_fields__}
    columns |= {"op_module": module, "op_frame": none, "op_phase": phase, "op_step": step}
    columns |= {
        "op_forward": forward,
        "op_node": node,
        "modules": ("outer", "inner"),
        "step_names": ("ProfilerStep#0",),
    }
    attribution = Attribution(**columns)
    return recording, attribution


def test_example_by_hand() -> None:
    got = [(row.name, row.forward_ns, row.backward_ns, row.module, row.num_steps) for row in run_times([by_hand()])]
    # A view makes no memory and has no row.
    assert got == [
        ("linear", 20, 3, "outer", 1),
        # 10 less the 6 of tanh; 30 less the 15 of the nested engine.
        ("Block", 4, 15, "outer", 1),
        # The nested engine ran the node of the recomputed tanh, which repeats this one.
        ("tanh", 6, 15, "inner", 1),
        ("mse_loss", 30, 10, None, 1),
    ]


def test_device_times_are_used_where_every_cycle_has_them() -> None:
    host, attribution = by_hand()
    # Launched in linear, in the function and in the tanh within it, and in the nodes of the loss and of the function.
    launched, duration = _ints(11, 41, 43, 101, 116), _ints(7, 3, 2, 4, 6)
    device = replace(host, kernels=Kernels(launched, _ints(0, 0, 0, 0, 0), duration))
    got = [(row.name, row.forward_ns, row.backward_ns) for row in run_times([(device, attribution)])]
    assert got == [("linear", 7, 0), ("Block", 3, 6), ("tanh", 2, 0), ("mse_loss", 0, 4)]
    both = run_times([(device, attribution), (host, attribution)])
    assert [row.forward_ns for row in both] == [20, 4, 6, 30], "else means over both would mix two clocks"


# ------------------------------------------------------------------------------------------------------------- laws
@pytest.mark.parametrize("name", NAMES)
def test_no_nanosecond_of_an_operator_or_a_node_is_lost(name: str) -> None:
    """Time covered by operators, intervals merged one by one, and engine time without what is nested in it."""
    forward = backward = 0
    for recording, attribution in cycles(name):
        instances = op_instances(recording, attribution)
        timed = instance_times(recording, instances)
        assert timed.forward_ns.sum() == naive_covered(recording, instances.op.tolist())
        # Everything that ran belongs to an operator of forward: these programs record whole steps.
        assert timed.backward_ns.sum() == naive_engine(recording)
        assert (timed.backward_ns[~timed.has_backward] == 0).all()
        forward += int(timed.forward_ns[~timed.bookkeeping].sum())
        backward += int(timed.backward_ns[~timed.bookkeeping].sum())
    # The rows are means; times the steps that they are means of, they are the steps' totals.
    assert sum(row.forward_ns * row.num_steps for row in times(name)) == pytest.approx(forward, rel=1e-9)
    assert sum((row.backward_ns or 0) * row.num_steps for row in times(name)) == pytest.approx(backward, rel=1e-9)


def naive_covered(recording: Recording, ops: list[int]) -> int:
    spans = sorted((int(recording.ops.start_ns[op]), int(recording.ops.end_ns[op])) for op in ops)
    covered = reached = 0
    for start, end in spans:
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def naive_engine(recording: Recording) -> int:
    ops, total = recording.ops, 0
    for row in range(len(ops.kind)):
        above, nested = int(ops.parent[row]), False
        while above >= 0:
            nested |= ops.kind[above] == OpKind.ENGINE
            above = int(ops.parent[above])
        if ops.kind[row] == OpKind.ENGINE and not nested:
            total += int(ops.end_ns[row] - ops.start_ns[row])
    return total


# ---------------------------------------------------------------------------------------------- rows, name by name
def rows(name: str) -> list[tuple[str, str | None, bool]]:
    return [(row.name, row.module, row.backward_ns is not None) for row in times(name)]


MLP = [("linear", "0", True), ("relu", "1", True), ("linear", "2", True), ("mse_loss", None, True)]
BLOCK = [("linear", "0", True), ("gelu", "1", True), ("dropout", "2", True), ("linear", "3", True)]


@pytest.mark.parametrize(
    "name", ["zero_grad_at_end", "no_optimizer", "backward_function", "retain_graph", "held_output"]
)
def test_rows_of_a_sequential_built_in_a_function(name: str) -> None:
    assert rows(name) == MLP


@pytest.mark.parametrize("name", ["checkpointing", "checkpointing_reentrant"])
def test_rows_of_checkpointing_have_their_own_backward(name: str) -> None:
    got = [row for row in rows(name) if row[0] not in ("CheckpointFunction", "add", "mse_loss")]
    assert got == [(op, f"blocks.{block}.{module}", has) for block in range(2) for op, module, has in BLOCK]


def test_custom_functions_have_their_class_names() -> None:
    assert [row[0] for row in rows("custom_function")] == ["linear", "_ScaledSquare", "linear", "mse_loss"]


def test_no_backward_is_none() -> None:
    assert rows("inference_no_grad") == [(name, module, False) for name, module, _ in MLP[:3]]
    assert [row.backward_ns for row in times("inference_mode")] == [None] * 3


def test_rows_of_steps_that_differ() -> None:
    assert [(row.name, row.module, row.num_steps) for row in times("every_other_step")] == [
        ("linear", "first", 4),
        ("linear", "extra", 2),
        ("relu", None, 2),
        ("linear", "last", 4),
        ("mse_loss", None, 4),
    ]


def test_views_queries_and_counters_are_no_rows() -> None:
    views = {"view", "transpose", "flatten", "unsqueeze", "size", "item", "t", "expand", "permute", "detach"}
    for name in ("convnet", "shared_weights", "zero_grad_at_end"):
        assert not {row.name for row in times(name)} & views
    # The counter of batch norm is bookkeeping too.
    assert "add_" not in {row.name for row in times("convnet")}
    # A view is a row only if its backward makes memory for gradients, or adds them up.
    for recording, attribution in cycles("transformer"):
        instances = op_instances(recording, attribution)
        timed = instance_times(recording, instances)
        names = [short_op_name(recording.strings[name]) for name in recording.ops.name[instances.op]]
        of_views = [row for row, name in enumerate(names) if name in views and not timed.bookkeeping[row]]
        assert of_views
        for row in of_views:
            inside = in_backward(recording, instances, row)
            makes = set(inside) & set(recording.allocations.op.tolist())
            assert makes or "aten::add_" in {recording.strings[recording.ops.name[op]] for op in inside}


def in_backward(recording: Recording, instances: OpInstances, row: int) -> list[int]:
    """The operators inside the engine's nodes of an invocation, looking upwards from each."""
    nodes = set(np.flatnonzero((recording.ops.kind == OpKind.ENGINE) & (instances.row_of_op == row)).tolist())
    inside = []
    for op in range(len(recording.ops.kind)):
        above = op
        while above >= 0 and above not in nodes:
            above = int(recording.ops.parent[above])
        inside += [op] if above >= 0 else []
    return inside


def test_a_sum_is_a_row_although_it_makes_four_bytes() -> None:
    assert "sum" in {row.name for row in times("fno_2d_new_zeros")}


def test_without_marked_steps_all_is_one_step() -> None:
    model = mlp()
    kept = []
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True,
                                on_trace_ready=lambda prof: kept.append(prof.profiler.kineto_results)):  # fmt: skip
        inputs, target = mlp_batch()
        F.mse_loss(model(inputs), target).backward()
    recording = read_recording(kept[0])
    rows = run_times([(recording, attribute(recording))])
    assert [(row.name, row.num_steps) for row in rows] == [(name, 1) for name, *_ in MLP]


def test_nothing_recorded_is_nothing_reported() -> None:
    assert run_times([]) == times("sparse_and_resize") == ()


def test_rows_that_only_later_steps_have_stand_where_they_run() -> None:
    """Steps a-b-c, then a-c-d: what comes behind a skipped row is put behind what came before it there."""
    steps = iter(("a", "abc", "acd"))  # the first is warmup
    layers = nn.ModuleDict({name: nn.Linear(8, 8) for name in "abcd"})

    def step() -> None:
        x = torch.randn(2, 8)
        for name in next(steps):
            x = layers[name](x)

    recording = read_recording(record(step, n_active=2)[0])
    names = {id(module): path for path, module in layers.named_modules()}
    rows = run_times([(recording, attribute(recording, module_names=names))])
    assert [(row.module, row.num_steps) for row in rows] == [("a", 2), ("b", 1), ("c", 2), ("d", 1)]


GPU = "a GPU"


@dataclass(frozen=True)
class FakeEvent:
    """As torch's list of events has them."""

    number: int
    linked: int = 0
    device: Any = HOST_DEVICE_TYPE
    start: int = 0
    duration: int = 0
    thread: int = 1
    called: str = "aten::mm"
    is_region: bool = False

    def is_user_annotation(self) -> bool:
        return self.is_region

    def name(self) -> str:
        return self.called

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_type(self) -> Any:
        return self.device

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def start_thread_id(self) -> int:
        return self.thread


@dataclass(frozen=True)
class FakeResults:
    listed: tuple[FakeEvent, ...]

    def events(self) -> tuple[FakeEvent, ...]:
        return self.listed


def test_a_kernel_is_the_operators_that_launched_it() -> None:
    """Operators 5 and 6, on two threads; the driver's calls have numbers of their own, which may be an operator's too.

    A span on the device stands for a `record_function` region, with all its kernels' time: it is no kernel, linked or
    not.
    """
    results = FakeResults((
        FakeEvent(5, start=100, thread=1),
        FakeEvent(6, start=200, thread=9),
        FakeEvent(6, linked=5, start=110, thread=1, called="cudaLaunchKernel"),
        FakeEvent(5, start=900, thread=1, called="cudaDeviceSynchronize"),
        FakeEvent(6, device=GPU, start=1000, duration=5000, called="aten::mm"),
        FakeEvent(31, linked=6, device=GPU, start=1000, duration=40),
        FakeEvent(32, linked=5, device=GPU, start=1040, duration=7),
        FakeEvent(33, linked=5, device=GPU, start=1050, duration=3),
        FakeEvent(34, linked=0, device=GPU, start=1060, duration=1000),
        FakeEvent(35, linked=77, device=GPU, start=1070, duration=1000),
        FakeEvent(5, linked=5, device=GPU, start=1000, duration=5000, called="my region", is_region=True),
    ))  # fmt: skip
    kernels = read_kernels(results, {1: 0}, {"aten::mm"})
    assert kernels is not None
    columns = (kernels.launched_ns, kernels.thread, kernels.duration_ns)
    assert [column.tolist() for column in columns] == [[200, 100, 100], [-1, 0, 0], [40, 7, 3]]


def test_without_a_device_there_are_none() -> None:
    assert read_kernels(FakeResults((FakeEvent(5), FakeEvent(6, linked=5))), {}, {"aten::mm"}) is None


def test_a_torch_without_these_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._autograd, "_KinetoEvent", object)
    with pytest.raises(RecordingError, match="linked_correlation_id"):
        read_kernels(FakeResults((FakeEvent(1, linked=5, device=GPU),)), {}, set())


def test_columns_of_one_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Kernels(np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64))


def with_kernels(recording: Recording, seed: int) -> Recording:
    """The recording, with a device that got work at random moments of random operators."""
    random = np.random.default_rng(seed)
    ops = recording.ops
    row = random.integers(0, len(ops.name), 500)
    launched = ops.start_ns[row] + (random.random(500) * (ops.end_ns - ops.start_ns)[row]).astype(np.int64)
    thread = ops.thread[row].copy()
    thread[:20] = -1
    return replace(recording, kernels=Kernels(launched, thread, random.integers(0, 1000, 500)))


@pytest.mark.parametrize("name", ["fno_2d_new_zeros", "checkpointing_reentrant", "custom_function", "lstm"])
def test_each_operator_has_the_kernels_launched_while_it_ran(name: str, recorded: Callable[[str], Recorded]) -> None:
    recording = with_kernels(recorded(name).recordings[-1], seed=1)
    ops, kernels = recording.ops, recording.kernels
    assert kernels is not None
    expected = np.zeros(len(ops.name), np.int64)
    for thread, start, ns in zip(kernels.thread, kernels.launched_ns, kernels.duration_ns, strict=True):
        for op in range(len(ops.name)):
            if ops.thread[op] == thread and ops.start_ns[op] <= start <= ops.end_ns[op]:
                expected[op] += ns
    found = kernel_times(recording)
    assert found is not None
    # Two operators may touch in one nanosecond, in which only one of them can have launched it.
    touching = np.isin(ops.end_ns, ops.start_ns) | np.isin(ops.start_ns, ops.end_ns)
    assert (found == expected)[~touching].all()
    top = (ops.parent < 0) & ~touching
    assert top.sum() > 0
    assert found[ops.parent < 0].sum() == kernels.duration_ns[kernels.thread >= 0].sum()


@pytest.mark.gpu
def test_kernels_are_those_of_torchs_own_list() -> None:
    """torch's `prof.events()` joins kernels to operators by its own code."""
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    batch = torch.randn(64, 256, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as prof:
        for _ in range(3):
            ((batch @ weight).relu().sum()).backward()
    recording = read_recording(prof)
    found = kernel_times(recording)
    assert found is not None
    # CUPTI's own work at the first launches ("Lazy Function Loading") has the kernels in torch's list once more.
    operators = [event for event in prof.events() if event.name.startswith("aten::")]
    theirs = sum(kernel.duration for event in operators for kernel in event.kernels)
    assert recording.kernels is not None
    assert recording.kernels.duration_ns.sum() == pytest.approx(theirs * 1000, rel=0.01)
    assert found[recording.ops.parent < 0].sum() == recording.kernels.duration_ns.sum()
    names = [recording.strings[name] for name in recording.ops.name]
    assert found[names.index("aten::matmul")] > 0
