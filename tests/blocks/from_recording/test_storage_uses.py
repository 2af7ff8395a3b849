"""Backward passes, uses of storages, and torch's categories of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.programs import Node, Program, Storage, programs
from tests.torch_rules import COLUMNS, TorchRules
from tests.training_steps import Recorded, each_workload, record
from tracer.blocks.from_recording.attribution import Attribution, attribute
from tracer.blocks.from_recording.storage_uses import (
    StorageUses,
    backward_passes,
    loader_calls,
    outermost_calls,
    records_grad,
)
from tracer.blocks.from_recording.time_spans import enclosing
from tracer.blocks.from_recording.torch_categories import Categories, Category, build_flow, categorize
from tracer.blocks.table import Phase
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import OpKind, Recording


# ---- What was done with each storage: used by backward, computed, brought in from outside, compared with a result.
def uses_of(step: Callable[[], object]) -> tuple[Recording, StorageUses]:
    recording = read_recording(record(step)[0])
    return recording, StorageUses(recording, categorize(recording), attribute(recording))


def keys_of(recording: Recording, tensor: Tensor) -> list[int]:
    """Of a tensor that lives throughout."""
    return np.flatnonzero(recording.keys.address == tensor.untyped_storage().data_ptr()).tolist()


def made_by(recording: Recording, op: str) -> list[int]:
    """Keys of what an operator allocated, in order."""
    allocations = recording.allocations
    rows = np.flatnonzero((allocations.size_bytes > 0) & (allocations.key >= 0) & (allocations.op >= 0))
    return [int(allocations.key[row]) for row in rows.tolist() if op in callers(recording, int(allocations.op[row]))]


def callers(recording: Recording, op: int) -> set[str]:
    """Names of an operator and those that it runs in: `randn` calls `empty`, which allocates."""
    found = set()
    while op >= 0:
        found.add(recording.strings[recording.ops.name[op]])
        op = int(recording.ops.parent[op])
    return found


def test_what_backward_used_and_what_it_did_not() -> None:
    weight = torch.randn(64, requires_grad=True)
    kept: list[Tensor] = []

    def step() -> None:
        saved = weight.exp()  # exp keeps its result for backward
        kept.append(weight.detach() * 2)  # nobody goes back to this
        saved.sum().backward()

    recording, found = uses_of(step)
    (exp,), (mul, *_) = made_by(recording, "aten::exp"), made_by(recording, "aten::mul")
    assert found.used_by_backward[exp]
    assert found.last_used_by_backward_ns[exp] > 0
    assert not found.used_by_backward[mul]
    assert found.last_used_by_backward_ns[mul] == -1


def test_data_drawn_is_a_source_what_is_computed_from_it_is_not() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        x = torch.randn(4, 8)
        mask = x > 0
        model(x * mask).sum().backward()

    recording, found = uses_of(step)
    (drawn, *_), (compared, *_) = made_by(recording, "aten::randn"), made_by(recording, "aten::gt")
    assert found.is_source[drawn]
    assert not found.is_computed[drawn]
    assert found.is_computed[compared]
    assert not found.is_source[compared]


def test_samples_that_are_put_together_are_one_source_and_they_are_pieces() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        samples = [torch.randn(8) for _ in range(3)]
        batch = torch.stack(samples)
        model(batch).sum().backward()

    recording, found = uses_of(step)
    (whole,) = made_by(recording, "aten::cat") or made_by(recording, "aten::stack")
    assert found.is_source[whole]
    samples = made_by(recording, "aten::randn")
    assert len(samples) == 3
    assert not found.is_source[samples].any()


def test_a_target_is_what_meets_a_result_and_a_constant_that_meets_data_is_not() -> None:
    model, target, table = nn.Linear(8, 8), torch.randn(4, 8), torch.randn(8)

    def step() -> None:
        x = torch.randn(4, 8) * table
        F.mse_loss(model(x), target).backward()
        model.zero_grad()

    recording, found = uses_of(step)
    (of_target,), (of_table,) = keys_of(recording, target), keys_of(recording, table)
    assert found.is_target[of_target]
    assert not found.is_target[of_table]
    assert found.last_used_ns[of_target] > found.last_used_ns[of_table] > 0


# ---- When backward ran, which calls of a model it went back to, and when a loader was asked.
def recorded_step(step: Callable[[], object]) -> tuple[Recording, Attribution]:
    recording = read_recording(record(step)[0])
    return recording, attribute(recording)


def test_a_call_that_is_trained_one_that_is_not_and_one_without_gradients() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        model(torch.randn(2, 4)).sum().backward()
        model(torch.randn(2, 4))
        with torch.no_grad():
            model(torch.randn(2, 4))

    calls = outermost_calls(*recorded_step(step))
    assert calls.records_grad.tolist() == [True, True, False]
    assert calls.went_back.tolist() == [True, False, False]
    assert (calls.start_ns < calls.end_ns).all()


def test_every_call_of_backward_is_a_pass() -> None:
    weight = torch.randn(4, requires_grad=True)

    def step() -> None:
        for _ in range(3):
            (weight * 2).sum().backward()
        torch.autograd.grad((weight * 3).sum(), weight)

    recording, attribution = recorded_step(step)
    start, end = backward_passes(recording, attribution)
    assert len(start) == 4
    nodes = recording.ops.kind != OpKind.OPERATOR
    assert (enclosing(start, end, recording.ops.start_ns[nodes]) >= 0).all()


@each_workload
def test_all_work_of_the_engine_lies_within_a_pass(name: str, recorded: Callable[[str], Recorded]) -> None:
    for recording in recorded(name).recordings:
        attribution = attribute(recording)
        start, end = backward_passes(recording, attribution)
        of_engine = attribution.op_node >= 0
        assert (enclosing(start, end, recording.ops.start_ns[of_engine]) >= 0).all()
        assert (attribution.op_phase[of_engine] != Phase.FORWARD).all()


def test_operators_that_record_a_graph() -> None:
    weight = torch.randn(4, requires_grad=True)

    def step() -> None:
        weight.mul(2)
        with torch.no_grad():
            weight.add(1)

    recording, _ = recorded_step(step)
    of_name = {recording.strings[name]: row for row, name in enumerate(recording.ops.name.tolist())}
    found = records_grad(recording)
    assert (bool(found[of_name["aten::mul"]]), bool(found[of_name["aten::add"]])) == (True, False)


def test_a_loader_is_asked_once_a_batch() -> None:
    loader = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2)

    def step() -> None:
        for (batch,) in loader:
            batch.sum()

    recording, _ = recorded_step(step)
    start, end = loader_calls(recording)
    assert len(start) == 4  # three batches, and the question that ends the loop
    stacks = [row for row, name in enumerate(recording.ops.name.tolist()) if recording.strings[name] == "aten::stack"]
    assert len(stacks) == 3
    assert enclosing(start, end, recording.ops.start_ns[stacks]).tolist() == [0, 1, 2]


X, WEIGHT, Y, SCRATCH, GRADIENT, MASK, MOMENTUM, NOISE = range(8)

# One training step of y = f(x, weight), storage by storage:
TRAINING_STEP = Program(
    storages=[Storage(id_) for id_ in range(8)],
    nodes=[
        # Forward. The kernel's own workspace is made and freed by the same node.
        Node(reads={X, WEIGHT, SCRATCH}, allocates={Y, SCRATCH}, frees={SCRATCH}),
        # In-place ReLU: version 1 of y.
        Node(writes={Y}),
        # Backward makes the weight's gradient from y and a tensor that it makes for itself.
        Node(reads={Y}, allocates={MASK}, backward=True),
        Node(reads={Y, MASK}, allocates={GRADIENT}, backward=True),
        # The optimizer: momentum and then the weight take the gradient.
        Node(reads={GRADIENT}, writes={MOMENTUM}),
        Node(reads={MOMENTUM}, writes={WEIGHT}),
        # Something that has nothing to do with any of this.
        Node(allocates={NOISE}),
    ],
    gradients={GRADIENT},
    optimizer_states={MOMENTUM},
)


def by_slot(categories: Categories) -> dict[tuple[int, int], str | None]:
    """Category by (key, version), in torch's words."""
    offset = categories.flow.slot_offset
    return {
        (key, version): COLUMNS[categories.of_slot[offset[key] + version]]
        for key in range(len(offset) - 1)
        for version in range(offset[key + 1] - offset[key])
    }


def test_columns_are_torchs() -> None:
    from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX

    theirs = [category.name if category else "UNTAGGED" for category in _CATEGORY_TO_INDEX]
    assert [category.name for category in Category] == theirs


def test_a_training_step_worked_by_hand() -> None:
    # Nobody lists the weight. It is found by the data flow: it takes part in forward beside an input, it is used for a
    # gradient (through y), and it depends on one (its version 1 comes from momentum, momentum from the gradient).
    # x is used for a gradient and depends on none: INPUT. Version 0 of y is made from x and the weight, version 1 from
    # version 0: ACTIVATION. The mask is made in backward and is no gradient: AUTOGRAD_DETAIL. Noise leads nowhere.
    assert by_slot(categorize(TRAINING_STEP.recording())) == {
        (X, 0): "INPUT",
        (WEIGHT, 0): "PARAMETER",
        (WEIGHT, 1): "PARAMETER",
        (Y, 0): "ACTIVATION",
        (Y, 1): "ACTIVATION",
        (SCRATCH, 0): "TEMPORARY",
        (GRADIENT, 0): "GRADIENT",
        (MASK, 0): "AUTOGRAD_DETAIL",
        (MOMENTUM, 0): "OPTIMIZER_STATE",
        (MOMENTUM, 1): "OPTIMIZER_STATE",
        (NOISE, 0): None,
    }


def test_nothing_at_all() -> None:
    categories = categorize(Program([], []).recording())
    assert len(categories.of_slot) == 0
    assert categories.of(np.array([-1]), np.array([0])).tolist() == [Category.UNTAGGED]


@settings(max_examples=100)
@given(programs())
def test_torchs_rules_as_plain_loops(program: Program) -> None:
    rules, ours = TorchRules(program), categorize(program.recording())
    theirs = {
        (key, version): rules.category(key, version)
        for key in range(len(program.storages))
        for version in range(rules.last_version[key] + 1)
    }
    assert by_slot(ours) == theirs
    known = dict(zip(by_slot(ours), ours.known_slots.tolist(), strict=True))
    assert {slot for slot, is_known in known.items() if is_known} == rules.known


@given(programs())
def test_versions_count_writes(program: Program) -> None:
    """Every version but the first has exactly one node that leaves it, and it is left before it is found."""
    recording = program.recording()
    flow = build_flow(recording.flow, len(recording.keys.id))
    left = Counter(slot for slots in flow.outputs for slot in slots)
    assert not left or max(left.values()) == 1
    first = set(flow.slot_offset[:-1].tolist())
    seen = set(first)
    for inputs, outputs in zip(flow.inputs, flow.outputs, strict=True):
        assert seen.issuperset(inputs)
        seen.update(outputs)
    assert seen == set(range(int(flow.slot_offset[-1])))


def their_categories(oracle: Any) -> dict[tuple[int, int, str, int], str | None]:
    """Torch's category of every (id, allocation id, device, version) in its timeline."""
    from torch.profiler._memory_profiler import TensorKey

    return {
        (key.id, key.storage.allocation_id, str(key.device), version): getattr(
            oracle.categories.get(key, version), "name", None
        )
        for _, _, (key, version), _ in oracle.timeline
        if isinstance(key, TensorKey)
    }


def our_categories(recording: Recording) -> dict[tuple[int, int, str, int], str | None]:
    keys = recording.keys
    names = list(zip(keys.id.tolist(), keys.allocation_id.tolist(), keys.device.tolist(), strict=True))
    return {
        (*names[key][:2], recording.devices[names[key][2]], version): category
        for (key, version), category in by_slot(categorize(recording)).items()
    }


@each_workload
def test_each_version_has_torchs_category(name: str, recorded: Callable[[str], Recorded]) -> None:
    """Stronger than equal sums: every version of every tensor."""
    run = recorded(name)
    theirs, ours = their_categories(run.oracle), our_categories(run.recordings[-1])
    assert theirs
    assert {slot: ours[slot] for slot in theirs} == theirs


def test_the_workloads_between_them_show_every_category(recorded: Callable[[str], Recorded]) -> None:
    """Or else the comparison with torch would prove less than it seems to."""
    found: set[str | None] = set()
    for name in ("fno_2d_new_zeros", "convnet", "sgd_momentum"):
        found.update(our_categories(recorded(name).recordings[0]).values())
    assert found == set(COLUMNS)
