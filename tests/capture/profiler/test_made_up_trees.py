"""Reading event trees that no run here makes: several threads and devices, reused addresses, deep and undefined."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.capture.profiler.event_trees import FakeResults, assert_consistent, tree
from tests.training_steps import torch_timeline
from tracer.blocks.from_recording.attribution import attribute
from tracer.blocks.from_recording.memory_timeline import memory_timeline
from tracer.blocks.from_recording.torch_categories import categorize
from tracer.capture.profiler import event_tree
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.torch_private import torch_profiler

CPU = torch.device("cpu")


@dataclass
class FakeOp:
    name: str
    inputs: list[Any] = field(default_factory=list)
    scope: Any = torch._C._profiler.RecordScope.FUNCTION
    sequence_number: int = -1


@dataclass
class FakeTensor:
    id: int | None
    allocation_id: int | None
    storage_data_ptr: int | None = 4096
    sizes: list[int] = field(default_factory=lambda: [4])
    strides: list[int] = field(default_factory=lambda: [1])
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    layout: torch.layout = torch.strided


@dataclass
class FakeAllocation:
    ptr: int
    alloc_size: int
    allocation_id: int | None
    id: int | None = None
    device: torch.device = CPU
    total_allocated: int = 0
    total_reserved: int = 0


@dataclass
class FakeFrame:
    file_name: str
    line_number: int
    function_name: str


@dataclass
class FakeCCall:
    caller: FakeFrame


class FakeOther:
    """An event without fields: Kineto's own, a backend's, an out-of-memory."""


@dataclass
class FakeEvent:
    extra_fields: Any
    start_time_ns: int
    children: list[FakeEvent] = field(default_factory=list)
    start_tid: int = 1
    name: str = ""
    parent: FakeEvent | None = None

    def __post_init__(self) -> None:
        for child in self.children:
            child.parent = self

    @property
    def end_time_ns(self) -> int:
        return self.start_time_ns + 1

    @property
    def tag(self) -> Any:
        """What torch's own analysis asks for, where ours looks at the type of the fields."""
        types = torch._C._profiler._EventType
        return {FakeOp: types.TorchOp, FakeAllocation: types.Allocation}.get(type(self.extra_fields), types.Kineto)

    @property
    def typed(self) -> tuple[Any, Any]:
        return self.tag, self.extra_fields


@pytest.fixture
def fake_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_tree, "OpFields", FakeOp)
    monkeypatch.setattr(event_tree, "TensorFields", FakeTensor)
    monkeypatch.setattr(event_tree, "AllocationFields", FakeAllocation)
    monkeypatch.setattr(event_tree, "PyCCallFields", FakeCCall)
    monkeypatch.setattr("torch.profiler._memory_profiler._TensorMetadata", FakeTensor)


class FreedFrame(FakeFrame):
    """A place in code that torch has freed."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("file_name", "function_name"):
            b"\xfd".decode()
        return super().__getattribute__(name)


def test_no_event_at_all() -> None:
    recording = read_recording(FakeResults())
    assert_consistent(recording)
    assert recording.num_events == 0
    timeline = memory_timeline(recording, categorize(recording))
    assert timeline.device == "cpu"
    assert timeline.coalesce()[1].shape == (0, 9)


@pytest.mark.usefixtures("fake_types")
def test_a_call_from_code_that_is_freed_has_its_line_alone() -> None:
    """torch 2.11 frees the code of a module that is imported in a step, and its names with it."""
    call = FakeEvent(FakeCCall(FreedFrame("", 7, "")), 1000, [FakeEvent(FakeOp("aten::empty"), 1001)])
    recording = read_recording(FakeResults(call))
    assert_consistent(recording)
    assert [recording.strings[at] for at in recording.frames.file[recording.calls.frame]] == ["<freed code>"]
    assert recording.frames.line[recording.calls.frame].tolist() == [7]


@pytest.mark.usefixtures("fake_types")
def test_several_devices_and_threads() -> None:
    """Two threads at once, each with its own device; addresses of two devices may be the same."""
    gpu = torch.device("cuda", 0)
    main = FakeEvent(FakeOp("aten::empty"), 1000, [
        FakeEvent(FakeAllocation(64, 100, 1, total_allocated=100), 1001),
        FakeEvent(FakeOther(), 1003),
    ])  # fmt: skip
    other = FakeEvent(FakeOp("aten::empty"), 1000, [
        FakeEvent(FakeAllocation(64, 512, 2, device=gpu, total_allocated=4096, total_reserved=8192), 1002),
        FakeEvent(FakeAllocation(64, -512, 2, device=gpu, total_allocated=3584, total_reserved=8192), 1004),
    ], start_tid=7)  # fmt: skip
    recording = read_recording(FakeResults(main, other))
    assert_consistent(recording)
    assert recording.num_events == 6
    assert recording.num_assumed_frees == 0
    assert recording.devices == ("cpu", "cuda:0")
    assert recording.allocations.device.tolist() == [0, 1, 1]
    assert recording.allocations.total_reserved_bytes.tolist() == [0, 8192, 8192]
    assert recording.ops.thread.tolist() == [0, 1]
    totals = {
        device: memory_timeline(recording, categorize(recording), device=device).sizes_bytes.sum(axis=1).tolist()
        for device in recording.devices
    }
    assert totals == {"cpu": [100], "cuda:0": [512, 0]}


@pytest.mark.usefixtures("fake_types")
def test_the_last_frame_before_an_operator_is_of_its_own_thread() -> None:
    """The engine's threads have no Python frame, and do not borrow one."""
    forward = [FakeEvent(FakeCCall(FakeFrame("train.py", 7, "step")), 1000), FakeEvent(FakeOp("aten::add"), 1010)]
    roots = [FakeEvent(FakeCCall(FakeFrame("train.py", 3, "main")), 990, forward)]
    recording = read_recording(FakeResults(*roots, FakeEvent(FakeOp("aten::mul"), 1020, start_tid=2)))
    assert_consistent(recording)
    after = recording.ops.inline_frame.tolist()
    assert recording.frames.line[after[0]] == 7
    assert after[1] == -1


ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def on_engine_thread(number: int, at_ns: int) -> FakeEvent:
    """A GPU's thread of the engine at work on one node."""
    node = FakeOp("MmBackward0", scope=torch_profiler.BACKWARD_SCOPE, sequence_number=number)
    inner = FakeEvent(FakeOp("aten::mm", sequence_number=0), at_ns + 2, start_tid=7)
    return FakeEvent(
        FakeOp(ENGINE, sequence_number=number), at_ns, [FakeEvent(node, at_ns + 1, [inner], start_tid=7)], start_tid=7
    )


@pytest.mark.usefixtures("fake_types")
def test_the_engines_thread_is_its_own_wherever_torch_hangs_it() -> None:
    """Two steps; `build_tree` in torch's collection.cpp puts both backwards below the first step's call.

    There the second backward comes before its own forward, and a kernel's thread is not that of the operator above.
    """

    def call(name: str, at_ns: int, children: list[FakeEvent]) -> FakeEvent:
        return FakeEvent(FakeCCall(FakeFrame("train.py", 7, name)), at_ns, children)

    def forward(number: int, at_ns: int) -> FakeEvent:
        return call("forward", at_ns, [FakeEvent(FakeOp("aten::mm", sequence_number=number), at_ns + 1)])

    backwards = call("backward", 1100, [on_engine_thread(4, 1110), on_engine_thread(5, 2110)])
    main = call("main", 900, [forward(4, 1000), backwards, forward(5, 2000), call("backward", 2100, [])])
    recording = read_recording(FakeResults(main))
    assert_consistent(recording)
    ops = recording.ops
    assert [recording.strings[name] for name in ops.name.tolist()] == ["aten::mm"] * 2 + [
        ENGINE, "MmBackward0", "aten::mm"
    ] * 2  # fmt: skip
    assert ops.start_ns.tolist() == [1001, 2001, 1110, 1111, 1112, 2110, 2111, 2112]
    assert ops.thread.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert ops.call.tolist()[2:] == [-1] * 6
    assert attribute(recording).op_forward.tolist() == [-1, -1, 0, 0, 0, 1, 1, 1]
    assert recording.num_events == 1 + 2 * 2 + 2 + 2 * 3


@pytest.mark.usefixtures("fake_types")
def test_what_runs_on_the_device_is_no_caller() -> None:
    """torch hangs a device's span for a region, which no operator launched, among the main thread's operators."""
    inner = FakeEvent(FakeOp("aten::addmm"), 1003, [FakeEvent(FakeAllocation(64, 512, 1), 1004)])
    linear = FakeEvent(FakeOp("aten::linear"), 1000, [FakeEvent(FakeOther(), 1001, [inner])])
    recording = read_recording(FakeResults(linear))
    assert_consistent(recording)
    assert [recording.strings[name] for name in recording.ops.name.tolist()] == ["aten::linear"]
    assert recording.allocations.op.tolist() == [0]


@pytest.mark.usefixtures("fake_types")
def test_a_call_of_the_driver_before_the_gradient_hides_nothing() -> None:
    """torch puts the driver's calls before all other children."""
    node = FakeOp("torch::autograd::AccumulateGrad", scope=torch_profiler.BACKWARD_SCOPE)
    detach = FakeEvent(FakeOp("aten::detach", [FakeTensor(1, 5)]), 1002)
    recording = read_recording(FakeResults(FakeEvent(node, 1000, [FakeEvent(FakeOther(), 1003), detach])))
    assert recording.gradient_keys.tolist() == [0]
    # A hook's call, or memory, before the first operator: torch's own rule says that this is no gradient.
    late = [FakeEvent(FakeAllocation(64, 512, 9), 1001), detach]
    assert read_recording(FakeResults(FakeEvent(node, 1000, late))).gradient_keys.tolist() == []


@pytest.mark.usefixtures("fake_types")
def test_a_region_inside_an_operator_is_a_span() -> None:
    """As `record_function` in a custom autograd.Function leaves it where no stacks are recorded."""
    region = FakeEvent(
        FakeOp("my region", scope=torch_profiler.USER_SCOPE), 1001, [FakeEvent(FakeOp("aten::mul"), 1002)]
    )
    recording = read_recording(FakeResults(FakeEvent(FakeOp("MyFunction"), 1000, [region])))
    assert_consistent(recording)
    assert [recording.strings[name] for name in recording.spans.name.tolist()] == ["my region"]
    assert [recording.strings[name] for name in recording.ops.name.tolist()] == ["MyFunction", "aten::mul"]


@pytest.mark.usefixtures("fake_types")
def test_a_list_with_an_undefined_tensor_fits_no_schema() -> None:
    """So torch's rules have it, and an operator without a schema is no node of the data flow."""
    tensors = [FakeTensor(1, 5), FakeTensor(2, 6)]
    complete, mixed = [*tensors], [*tensors, FakeTensor(None, None, None)]
    flow = read_recording(FakeResults(FakeEvent(FakeOp("aten::cat", [complete, 0]), 1000))).flow
    assert flow.edge_key.tolist() == [0, 1]
    assert not flow.edge_mutated.any()
    flow = read_recording(FakeResults(FakeEvent(FakeOp("aten::cat", [mixed, 0]), 1000))).flow
    assert len(flow.node_time_ns) == 0


@pytest.mark.usefixtures("fake_types")
def test_a_tree_deeper_than_pythons_recursion_limit() -> None:
    event = FakeEvent(FakeAllocation(64, 100, 1), 50_000)
    for depth in range(10_000):
        event = FakeEvent(FakeOther(), 49_999 - depth, [event])
    recording = read_recording(FakeResults(event))
    assert recording.num_events == 10_001
    assert recording.allocations.size_bytes.tolist() == [100]


@pytest.mark.usefixtures("fake_types")
def test_an_address_that_is_handed_out_again_was_freed_unseen() -> None:
    """Torch's profiler gives both allocations one number, and its analysis gives up at the second."""
    first, second = FakeTensor(1, 5, 64), FakeTensor(1, 5, 64)
    roots = [
        FakeEvent(FakeAllocation(64, 100, 5, id=1), 1000),
        FakeEvent(FakeOp("aten::relu", [first]), 1010),
        FakeEvent(FakeAllocation(64, 300, 5, id=1), 1020),
        FakeEvent(FakeOp("aten::relu", [second]), 1030),
        FakeEvent(FakeAllocation(64, -300, 5, id=1), 1040),
    ]
    torch_timeline(FakeResults(*roots[:2]))
    with pytest.raises(AssertionError):
        torch_timeline(FakeResults(*roots))
    recording = read_recording(FakeResults(*roots))
    assert_consistent(recording)
    assert recording.num_assumed_frees == 1
    # The free that was not seen is put in right before the second allocation.
    allocations = recording.allocations
    assert allocations.size_bytes.tolist() == [100, -100, 300, -300]
    assert allocations.time_ns.tolist() == [1000, 1019, 1020, 1040]
    assert allocations.assumed.tolist() == [False, True, False, False]
    assert allocations.key.tolist() == [0, 0, 1, 1]
    assert recording.keys.size_bytes.tolist() == [100, 300]
    # The second operator read the second storage.
    assert recording.flow.edge_key.tolist() == [0, 0, 0, 1, 1, 1]
    timeline = memory_timeline(recording, categorize(recording))
    assert timeline.sizes_bytes.sum(axis=1).tolist() == [100, 0, 300, 0]


@pytest.mark.usefixtures("fake_types")
@pytest.mark.parametrize(("order", "numbers"), [((0, 2, 1), (5, -2)), ((1, 2, 0), (-2, 5))])
def test_a_number_that_was_used_twice_is_paired_in_time(order: tuple[int, ...], numbers: tuple[int, int]) -> None:
    """Another thread's events are read apart: a free that came last, or an allocation that came first."""
    events = [(100, 1000), (300, 1020), (-300, 1040)]
    roots = [FakeEvent(FakeAllocation(64, size, 5, id=1), time_ns) for size, time_ns in (events[at] for at in order)]
    allocations = read_recording(FakeResults(*roots)).allocations
    columns = allocations.time_ns, allocations.size_bytes, allocations.allocation_id, allocations.assumed
    first, second = numbers
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (1000, 100, first, False),
        (1019, -100, first, True),
        (1020, 300, second, False),
        (1040, -300, second, False),
    ]


@pytest.mark.usefixtures("fake_types")
def test_without_numbers_an_address_that_is_handed_out_again_was_freed_unseen_too() -> None:
    """To torch this is no tensor, and its analysis goes on."""
    sizes = [100, 300, -300, 50, -50]
    roots = [FakeEvent(FakeAllocation(64, size, None), 1000 + i) for i, size in enumerate(sizes)]
    torch_timeline(FakeResults(*roots))
    recording = read_recording(FakeResults(*roots))
    assert_consistent(recording)
    assert recording.num_assumed_frees == 1
    assert recording.allocations.size_bytes.tolist() == [100, -100, 300, -300, 50, -50]
    assert len(set(recording.allocations.allocation_id.tolist())) == 3
    assert memory_timeline(recording, categorize(recording)).sizes_bytes.sum(axis=1)[-1] == 0


@pytest.mark.usefixtures("fake_types")
def test_without_numbers_each_free_is_of_the_allocation_before_it_in_time() -> None:
    """What the engine's thread frees is read behind all of the main thread, that of later steps too."""

    def free(at_ns: int) -> FakeEvent:
        inner = FakeEvent(FakeAllocation(64, -100, None), at_ns + 1, start_tid=7)
        return FakeEvent(FakeOp(ENGINE), at_ns, [inner], start_tid=7)

    backwards = FakeEvent(FakeCCall(FakeFrame("train.py", 7, "step")), 1010, [free(1011), free(2011)])
    roots = [FakeEvent(FakeAllocation(64, 100, None), 1000), backwards, FakeEvent(FakeAllocation(64, 100, None), 2000)]
    recording = read_recording(FakeResults(*roots))
    assert_consistent(recording)
    allocations = recording.allocations
    assert allocations.time_ns.tolist() == [1000, 2000, 1012, 2012]
    first, second, *freed = allocations.allocation_id.tolist()
    assert (first, second) == tuple(freed)
    assert first != second
    assert recording.num_assumed_frees == 0


@pytest.mark.usefixtures("fake_types")
def test_sizes_come_from_the_allocator_and_else_from_the_widest_tensor() -> None:
    roots = [
        FakeEvent(FakeOp("aten::relu", [FakeTensor(1, 5, sizes=[2, 3], strides=[3, 1])]), 1000),  # 2 * 3 floats
        FakeEvent(FakeOp("aten::relu", [FakeTensor(1, 5, sizes=[4, 3], strides=[10, 1])]), 1001),  # 4 * 10 floats
        FakeEvent(FakeOp("aten::relu", [FakeTensor(2, 6, sizes=[], strides=[])]), 1002),  # one number
        FakeEvent(FakeOp("aten::relu", [FakeTensor(3, 7, sizes=[99])]), 1003),
        FakeEvent(FakeAllocation(4096, -512, 7, id=3), 1004),
        FakeEvent(FakeOp("aten::relu", [FakeTensor(4, 8, layout=torch.sparse_coo)]), 1005),
        FakeEvent(FakeOp("aten::relu", [FakeTensor(None, 9), FakeTensor(5, None), FakeTensor(6, 10, None)]), 1006),
    ]
    keys = read_recording(FakeResults(*roots)).keys
    assert keys.id.tolist() == [1, 2, 3, 4]
    assert keys.size_bytes.tolist() == [160, 4, 512, 0]


def test_reading_a_tensor_without_memory_costs_no_reference_to_none() -> None:
    """Torch gives back a None that it was not given: some 100,000 of them end Python with `deallocating None`."""
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        torch.empty(0) + torch.empty(0)
    found = [
        value
        for event in tree(prof.profiler.kineto_results.experimental_event_tree())
        for value in getattr(event.extra_fields, "inputs", ())
        if isinstance(value, torch_profiler.TensorFields) and torch_profiler.storage_address(value) is None
    ]
    before = sys.getrefcount(None)
    for _ in range(1000):
        torch_profiler.storage_address(found[0])
    assert abs(sys.getrefcount(None) - before) < 100
