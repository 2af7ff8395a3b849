"""A rehearsal with the CPU's rules and the profiler's recording of the same step agree on every tensor, to the byte.

Kind, bytes, module, line and phase of every parameter, buffer, gradient, optimizer state, input, saved activation and
of all that Python holds, in two steps of every workload that the tests have.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.rehearsal.side_by_side import BlockRow, rehearsed_findings, side_by_side
from tests.report_workloads import REPORT_WORKLOADS
from tests.training_steps import WORKLOADS
from tracer.analysis.profiles.attribution import Phase
from tracer.errors import RehearsalError

# What no rehearsal can tell: steps that go by numbers, and what they need of memory itself.
NOT_REHEARSED = {
    "lbfgs": "its line search ends where the numbers say",
    "sparse_and_resize": "the number of elements above 0 is the length of an index, and numpy reads them",
    "replaced_data": "assigns to .data of a tensor that is in no module",
}
QUICK = ("convnet", "transformer", "shared_weights", "custom_function", "adamw_foreach", "loop", "fno_1d_new_zeros")
NAMES = sorted({*WORKLOADS, *REPORT_WORKLOADS} - NOT_REHEARSED.keys())

# Python's number in `x / 2`, which the CPU puts into a tensor of its own below the dispatcher, and checkpoint's flags.
MAX_NUMBER_BYTES = 8
RANDOM_STATE_BYTES = 5056
PARAMETER_BYTES = (8192, 256, 2048, 32)


def is_known_by_its_look(row: BlockRow, name: str) -> bool:
    """Parameters' storages that an optimizer has made and replaced: a rehearsal looked while they were parameters."""
    return name == "rebinding_optimizer" and row.phase == Phase.OPTIMIZER and row.size_bytes in PARAMETER_BYTES


def is_inside_a_kernel(row: BlockRow, name: str) -> bool:
    """What only the recording has, by the operator that makes it."""
    if row.size_bytes <= MAX_NUMBER_BYTES or is_known_by_its_look(row, name):
        return True
    if name.startswith("checkpointing"):  # `torch.get_rng_state`, a tensor that no operator has made
        return row.size_bytes == RANDOM_STATE_BYTES
    # A graph that an earlier cycle has left is walked by the session; the rehearsal says that its tensors are held.
    return name == "growing_list" and row.kind == "ACTIVATION" and row.phase < 0


def is_known_otherwise(row: BlockRow, name: str) -> bool:
    """What only the rehearsal has."""
    if row.size_bytes <= MAX_NUMBER_BYTES or is_known_by_its_look(row, name):
        return True
    if name == "growing_list" and row.kind == "HELD" and row.phase < 0:  # the same tensors
        return True
    # The gradient of what the checkpoint's inner forward was given: to the recording, one of backward's own tensors.
    return name == "checkpointing_reentrant" and row.kind == "GRADIENT" and row.size_bytes == 2048


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_a_rehearsal_and_a_recording_agree_on_every_tensor(name: str) -> None:
    both = side_by_side(name)
    recorded = Counter({row: n for row, n in both.only_recorded.items() if not is_inside_a_kernel(row, name)})
    rehearsed = Counter({row: n for row, n in both.only_rehearsed.items() if not is_known_otherwise(row, name)})
    assert (rehearsed, recorded) == (Counter(), Counter())
    assert both.num_same > 0


@pytest.mark.parametrize("name", ["transformer", "convnet"])
def test_the_rows_of_a_rehearsed_peak_sum_to_it(name: str) -> None:
    peak = rehearsed_findings(name).peak
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == peak.allocator_peak_bytes


@pytest.mark.parametrize("name", ["sparse_and_resize", "replaced_data"])
def test_what_cannot_be_rehearsed_says_why_and_where(name: str) -> None:
    with pytest.raises(RehearsalError, match=r"training_steps\.py:\d+\)\. Until then .*B were allocated at most"):
        rehearsed_findings(name)
