"""Reading the event tree: what the columns promise, compared with plain recursion."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.capture.profiler.event_trees import FakeResults, assert_consistent, columns, tree
from tests.training_steps import Recorded, build_workload, each_workload, record
from tracer.capture.profiler.event_tree import read_kernels, read_recording
from tracer.capture.torch_private import torch_profiler
from tracer.errors import RecordingError

# ---- real recordings -------------------------------------------------------------------------------------------------


@each_workload
def test_columns_are_consistent(name: str, recorded: Callable[[str], Recorded]) -> None:
    for recording in recorded(name).recordings:
        assert_consistent(recording)
        assert recording.num_assumed_frees == 0


@each_workload
def test_equals_plain_recursion(name: str, recorded: Callable[[str], Recorded]) -> None:
    run = recorded(name)
    for results, recording in zip(run.results, run.recordings, strict=True):
        events = [(event, event.extra_fields) for event in tree(results.experimental_event_tree())]
        assert recording.num_events == len(events)
        of_type: dict[str, list[Any]] = {}
        for event, fields in events:
            of_type.setdefault(type(fields).__name__, []).append((event, fields))
        table = recording.allocations
        rows = zip(
            table.time_ns.tolist(), table.address.tolist(), table.size_bytes.tolist(), table.allocation_id.tolist(),
            table.total_allocated_bytes.tolist(), (recording.devices[d] for d in table.device.tolist()), strict=True,
        )  # fmt: skip
        assert list(rows) == [
            (e.start_time_ns, f.ptr, f.alloc_size, f.allocation_id, f.total_allocated, str(f.device))
            for e, f in of_type["_ExtraFields_Allocation"]
        ]
        # Which of them are tensors, and of which id.
        ids = np.where(table.key >= 0, recording.keys.id[table.key], -1).tolist()
        assert ids == [-1 if f.id is None else f.id for _, f in of_type["_ExtraFields_Allocation"]]
        calls = [pair for pair in events if type(pair[1]).__name__ in ("_ExtraFields_PyCall", "_ExtraFields_PyCCall")]
        assert recording.calls.start_ns.tolist() == [event.start_time_ns for event, _ in calls]
        called_modules = [f.module.self_ptr for _, f in of_type.get("_ExtraFields_PyCall", []) if f.module]
        assert set(recording.modules.self_ptr.tolist()) == {int(pointer) for pointer in called_modules}
        spans = [e for e, f in of_type["_ExtraFields_TorchOp"] if f.scope == torch._C._profiler.RecordScope.USER_SCOPE]
        assert [recording.strings[name] for name in recording.spans.name.tolist()] == [e.name for e in spans]


def test_operators_inside_operators_are_not_listed(recorded: Callable[[str], Recorded]) -> None:
    """One row per operator that Python or the engine called, and each knows its enclosing call."""
    run = recorded("shared_weights")
    (recording, *_), (results, *_) = run.recordings, run.results
    wanted = []

    def walk(event: Any, inside_operator: bool) -> None:
        fields = event.extra_fields
        if type(fields) is torch_profiler.OpFields:
            backward = fields.scope == torch_profiler.BACKWARD_SCOPE
            user = fields.scope == torch_profiler.USER_SCOPE
            if not user and (backward or not inside_operator):
                wanted.append(event.name)
            engine = event.name.startswith("autograd::engine::evaluate_function: ")
            inside_operator = not (backward or user or (engine and not inside_operator))
        elif type(fields) is not torch_profiler.AllocationFields:
            inside_operator = False
        for child in event.children:
            walk(child, inside_operator)

    for root in results.experimental_event_tree():
        walk(root, False)
    assert [recording.strings[name] for name in recording.ops.name.tolist()] == wanted
    assert (recording.ops.call >= 0).any()


def test_spans_name_the_steps_and_the_optimizer(recorded: Callable[[str], Recorded]) -> None:
    recording = recorded("adamw_foreach").recordings[0]
    names = [recording.strings[name] for name in recording.spans.name.tolist()]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert names.count("Optimizer.step#AdamW.step") == 2


def test_modules_are_the_live_ones(recorded: Callable[[str], Recorded]) -> None:
    run = recorded("transformer")
    assert run.workload.model is not None
    live = {id(module): type(module).__name__ for module in run.workload.model.modules()}
    modules = run.recordings[0].modules
    for pointer, name in zip(modules.self_ptr.tolist(), modules.name.tolist(), strict=True):
        assert run.recordings[0].strings[name].rpartition("_")[0] == live[pointer]


def test_listed_keys_have_the_sizes_of_the_live_parameters(recorded: Callable[[str], Recorded]) -> None:
    run = recorded("adamw_foreach")
    assert run.workload.model is not None
    recording = run.recordings[0]
    sizes = sorted(parameter.nbytes for parameter in run.workload.model.parameters())
    assert sorted(recording.keys.size_bytes[recording.parameter_keys].tolist()) == sizes
    # Two moments and a step counter of 4 bytes for each.
    states = sorted(recording.keys.size_bytes[recording.optimizer_state_keys].tolist())
    assert states == sorted([*sizes, *sizes, *[4] * len(sizes)])


def test_nothing_of_torch_is_held(recorded: Callable[[str], Recorded]) -> None:
    recording = recorded("convnet").recordings[0]
    copy = pickle.loads(pickle.dumps(recording))
    for name, table in columns(recording).items():
        for column, values in table.items():
            assert (getattr(getattr(copy, name), column) == values).all()


def test_columns_are_small(recorded: Callable[[str], Recorded]) -> None:
    """The event tree takes some 5,000 bytes per event."""
    recording = recorded("fno_2d_new_zeros").recordings[0]
    num_bytes = sum(column.nbytes for table in columns(recording).values() for column in table.values())
    assert num_bytes / recording.num_events < 250


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool, recorded: Callable[[str], Recorded]) -> None:
    run = recorded("inference_mode")
    (gc.enable if enabled else gc.disable)()
    try:
        read_recording(run.results[0])
        assert gc.isenabled() == enabled
        with pytest.raises(RuntimeError, match="no tree"):
            read_recording(BrokenResults())
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


class BrokenResults:
    def experimental_event_tree(self) -> Any:
        raise RuntimeError("no tree")


# ---- less recorded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convnet", "sparse_and_resize"])
def test_without_shapes_every_block_is_a_block_without_a_tensor(name: str) -> None:
    workload = build_workload(name)

    def step() -> None:
        workload.step()
        # Else the next step frees what this one made, and carries its number only where the address is used again.
        if workload.optimizer is not None:
            workload.optimizer.zero_grad()

    (results,) = record(step, record_shapes=False)
    recording = read_recording(results)
    assert_consistent(recording)
    assert len(recording.keys.id) == 0
    assert len(recording.allocations.key) > 0
    assert recording.num_assumed_frees == 0
    # A free carries the number of its allocation.
    made = {
        n for n, s in zip(recording.allocations.allocation_id, recording.allocations.size_bytes, strict=True) if s > 0
    }
    assert made.issuperset(recording.allocations.allocation_id[recording.allocations.size_bytes < 0])


def test_without_stacks_there_are_no_calls() -> None:
    (results,) = record(build_workload("convnet").step, with_stack=False)
    recording = read_recording(results)
    assert_consistent(recording)
    assert len(recording.calls.kind) == len(recording.frames.file) == len(recording.modules.name) == 0
    assert len(recording.ops.name) > 0


def test_a_region_that_is_open_when_the_recording_ends_lasts_until_then() -> None:
    """As the optimizer's, in whose own hook a session's recording ends; torch ends it with the call that opened it."""
    region = torch.profiler.record_function("a region")

    def step() -> None:
        region.__enter__()
        torch.ones(1000).square().sum()

    (results,) = record(step)
    region.__exit__(None, None, None)
    recording = read_recording(results)
    names = [recording.strings[name] for name in recording.spans.name.tolist()]
    assert recording.spans.end_ns[names.index("a region")] > recording.ops.end_ns.max()


def test_no_tensor_goes_into_an_operator() -> None:
    """The profiler gives no numbers at all then."""
    (results,) = record(lambda: torch.zeros(10))
    recording = read_recording(results)
    assert_consistent(recording)
    assert recording.allocations.size_bytes.tolist() == [40, -40]
    assert len(set(recording.allocations.allocation_id.tolist())) == 1


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profiler", [None, object(), torch.profiler.profile(profile_memory=True)])
def test_nothing_recorded(profiler: Any) -> None:
    with pytest.raises(RecordingError, match="no finished recording") as error:
        read_recording(profiler)
    assert "on_trace_ready" in error.value.hint


@pytest.mark.parametrize("number", range(5))
def test_a_field_that_torch_no_longer_has(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the five types: one sentence with the field and torch's version, and a hint."""
    types = list(torch_profiler._FIELDS)
    fields = torch_profiler._FIELDS[types[number]]
    monkeypatch.setitem(torch_profiler._FIELDS, types[number], (*fields, "gone_tomorrow"))
    torch_profiler.check_event_types.cache_clear()
    with pytest.raises(RecordingError, match=rf"torch {torch.__version__.split('+')[0]}.*gone_tomorrow") as error:
        read_recording(FakeResults())
    assert "torch 2.7 to" in error.value.hint
    monkeypatch.undo()
    torch_profiler.check_event_types.cache_clear()
    read_recording(FakeResults())


def test_an_event_that_torch_no_longer_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything of it is read."""
    monkeypatch.delattr(torch._C._autograd._KinetoEvent, "linked_correlation_id")
    with pytest.raises(RecordingError, match="linked_correlation_id"):
        read_kernels(SimpleNamespace(events=lambda: [object()]), {}, ())


def test_a_type_that_torch_no_longer_has() -> None:
    with pytest.raises(RecordingError, match="_ExtraFields_GoneTomorrow"):
        torch_profiler._profiler_type("_ExtraFields_GoneTomorrow")


def test_every_table_checks_its_lengths() -> None:
    good = read_recording(FakeResults())
    for name, table in columns(good).items():
        if name != "flow":
            first, *others = table.values()
            with pytest.raises(ValueError, match="differ in length"):
                type(getattr(good, name))(np.append(first, 0), *others)
