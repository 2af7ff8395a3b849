"""What counters say of a run, on columns made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracer.analysis.steps.step_findings import StepFindings, explain_steps
from tracer.capture.step_columns import StepColumns, StepTable

MIB = 1 << 20


def columns(num_steps: int = 400, **given: Any) -> StepColumns:
    """A run that holds 100 MiB when a step ends and 300 MiB before the optimizer, all of it in MiB."""
    usual = {"end_bytes": 100, "forward_bytes": 200, "backward_bytes": 300, "reserved_bytes": 400, "peak_bytes": 300}
    table = StepTable()
    for step in range(1, num_steps + 1):
        row = {name: int(MIB * (value(step) if callable(value) else value)) for name, value in (usual | given).items()}
        if "num_retries" in given:
            row["num_retries"] = given["num_retries"](step)
        row.setdefault("num_retries", 0)
        table.add({"step": step, "resident_bytes": 1000 * MIB, **row})
    return table.columns()


def found(**given: Any) -> StepFindings:
    return explain_steps(columns(**given), limit_bytes=1000 * MIB)


def test_a_steady_run_has_nothing_to_say() -> None:
    assert found() == StepFindings(400)


def test_nothing_of_no_steps() -> None:
    assert explain_steps(StepTable().columns(), limit_bytes=None) == StepFindings(0)


def test_growth_ends_where_the_highest_moment_of_a_step_meets_the_limit() -> None:
    """One MiB a step from 100; the optimizer's step sees 200 more: 1000 MiB are reached by step 700."""
    growth = found(end_bytes=lambda step: 100 + step, backward_bytes=lambda step: 300 + step).growth
    assert growth is not None
    assert growth.trend.bytes_per_step == MIB
    assert growth.end_step is not None and abs(growth.end_step - 700) <= 1


def test_growth_ends_where_a_workspace_between_the_moments_meets_the_limit() -> None:
    """Nobody looks while a workspace of 500 MiB is there, but the allocator's peak rises with each step."""
    growth = found(end_bytes=lambda step: 100 + step, peak_bytes=lambda step: 600 + step).growth
    assert growth is not None
    assert growth.end_step is not None and abs(growth.end_step - 400) <= 1
    # A peak of long ago says nothing of these steps.
    growth = found(end_bytes=lambda step: 100 + step, backward_bytes=lambda step: 300 + step, peak_bytes=900).growth
    assert growth is not None
    assert growth.end_step is not None and abs(growth.end_step - 700) <= 1


def test_without_a_limit_there_is_no_end() -> None:
    growth = explain_steps(columns(end_bytes=lambda step: 100 + step), limit_bytes=None).growth
    assert growth is not None and growth.end_step is None


def test_evaluation_that_holds_more_than_training() -> None:
    more = found(evaluation_bytes=lambda step: 500 if step == 250 else -1 / MIB).evaluation
    assert more is not None
    assert (more.bytes, more.usual_bytes, more.step) == (500 * MIB, 300 * MIB, 250)
    assert found(evaluation_bytes=lambda step: 310 if step == 250 else -1 / MIB).evaluation is None


def test_later_steps_hold_the_optimizers_state_beside_all_else() -> None:
    later = found(
        backward_bytes=lambda step: 200 if step == 1 else 300,
        forward_bytes=150,
        peak_bytes=lambda step: 200 if step == 1 else 300,
    ).first_steps
    assert later is not None
    assert (later.bytes, later.usual_bytes, later.step) == (300 * MIB, 200 * MIB, 3)


def test_a_first_step_that_held_more() -> None:
    """The allocator's peak is still that of the first step."""
    first = found(peak_bytes=900).first_steps
    assert first is not None
    assert (first.bytes, first.usual_bytes, first.step) == (900 * MIB, 300 * MIB, 1)


def test_reserved_memory_that_grows_alone_is_in_pieces() -> None:
    pieces = found(reserved_bytes=lambda step: 400 + step).fragmenting
    assert pieces is not None
    assert (pieces.trend.bytes_per_step, pieces.in_use_bytes) == (MIB, 300 * MIB)


def test_reserved_memory_that_grows_with_what_is_in_use_is_not() -> None:
    both = found(reserved_bytes=lambda step: 400 + step, end_bytes=lambda step: 100 + step)
    assert both.growth is not None and both.fragmenting is None
    peaks = found(reserved_bytes=lambda step: 400 + step, backward_bytes=lambda step: 300 + step)
    assert peaks.fragmenting is None


def test_the_hosts_memory_beside_a_devices() -> None:
    grown = found(resident_bytes=lambda step: 1000 + step)
    assert grown.host_growth is not None and grown.host_growth.bytes_per_step == MIB
    assert grown.growth is None


def test_retries_are_those_of_the_run() -> None:
    assert found(num_retries=lambda step: 7 + (step > 200) + (step > 300)).num_retries == 2


def test_resident_memory_alone_says_what_it_can() -> None:
    table = StepTable()
    for step in range(1, 401):
        table.add({"step": step, "end_bytes": (1000 + step) * MIB, "resident_bytes": (1000 + step) * MIB})
    only = explain_steps(table.columns(), limit_bytes=None, has_allocator=False)
    assert only.growth is not None and only.host_growth is None


def seldom(value: Any) -> Any:
    """Seen in the first 32 steps and then in one of eight."""
    return lambda step: (value(step) if callable(value) else value) if step <= 32 or step % 8 == 0 else -1 / MIB


def test_moments_that_are_looked_at_in_one_of_eight_steps_say_the_same() -> None:
    steady = {"forward_bytes": seldom(200), "backward_bytes": seldom(300)}
    assert found(**steady) == StepFindings(400)
    assert len(columns(**steady).moments) == 32 + 46
    growing = {"end_bytes": lambda step: 100 + step, "backward_bytes": seldom(lambda step: 300 + step)}
    growth = found(**growing, forward_bytes=seldom(200)).growth
    assert growth is not None and growth.end_step is not None and abs(growth.end_step - 700) <= 1
    pieces = found(**steady, reserved_bytes=lambda step: 400 + step).fragmenting
    assert pieces is not None and pieces.in_use_bytes == 300 * MIB
    first = found(**steady, peak_bytes=900).first_steps
    assert first is not None and (first.bytes, first.usual_bytes) == (900 * MIB, 300 * MIB)
    more = found(**steady, evaluation_bytes=lambda step: 500 if step == 250 else -1 / MIB).evaluation
    assert more is not None and more.usual_bytes == 300 * MIB


def test_where_no_moment_is_looked_at_all_rows_count() -> None:
    bare = columns(forward_bytes=-1 / MIB, backward_bytes=-1 / MIB)
    assert bare.moments is bare


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_long_run_keeps_its_last_step_its_highest_values_and_its_length() -> None:
    """8 rows at most: after 39 steps each stands for 8, and the last for the 7 that are left."""
    table = StepTable(8)
    for step in range(1, 40):
        table.add({"step": step, "end_bytes": step, "forward_bytes": 1000 if step == 13 else step % 7})
    kept = table.columns()
    assert kept.step.tolist() == kept.end_bytes.tolist() == [8, 16, 24, 32, 39]
    assert kept.forward_bytes.tolist() == [6, 1000, 6, 6, 6]
    assert (kept.evaluation_bytes == -1).all()


def test_every_length_ends_with_the_last_step() -> None:
    table = StepTable(4)
    for step in range(1, 200):
        table.add({"step": step})
        kept = table.columns().step
        assert kept[-1] == step and len(kept) <= 5 and (np.diff(kept) > 0).all()
