"""Categories: an example worked by hand, torch's rules written as plain loops over any data flow, and torch itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.programs import Node, Program, Storage, programs
from tests.torch_rules import COLUMNS, TorchRules
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.profiles.torch_categories import Categories, Category, build_flow, categorize
from tracer.capture.recording import Recording

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


@pytest.mark.parametrize("name", WORKLOADS)
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
