"""Phases of steps: in order, without overlap, micro-batches as stretches of one phase, the peak in its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.analysis.profiles.test_attribution import profiled, recorded
from tests.training_steps import build_workload
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle


def stretches(findings: CycleFindings) -> list[tuple[int, int, str]]:
    return sorted((start, end, one.phase) for one in findings.step_phases for start, end in one.stretches_ns)


@pytest.mark.parametrize("name", ["lbfgs", "gradient_accumulation", "zero_grad_at_start", "convnet"])
def test_stretches_do_not_overlap_and_times_sum_to_no_more_than_the_step(name: str) -> None:
    findings = find_in_cycle(recorded(build_workload(name).step), device="cpu")
    laid_out = stretches(findings)
    for (_, end, _), (start, _, _) in pairwise(laid_out):
        assert end <= start
    spans = findings.recording.spans
    for step in findings.attribution.step_names:
        row = [findings.recording.strings[name] for name in spans.name.tolist()].index(step)
        total = sum(one.duration_ns for one in findings.step_phases if one.step == step)
        assert 0 < total <= spans.end_ns[row] - spans.start_ns[row]


def test_micro_batches_are_stretches_of_one_phase() -> None:
    findings = find_in_cycle(recorded(build_workload("gradient_accumulation").step), device="cpu")
    counts = {(one.step, one.phase): len(one.stretches_ns) for one in findings.step_phases}
    for step in findings.attribution.step_names:
        assert [counts[step, phase] for phase in ("forward", "backward", "optimizer")] == [3, 3, 1]
    order = [one.phase for one in findings.step_phases]
    assert order == ["forward", "backward", "optimizer"] * 2


def test_phases_of_a_step_come_in_order_and_the_peak_is_in_its_own() -> None:
    workload = build_workload("fno_2d_new_zeros")
    assert workload.model is not None
    findings = profiled(workload.model, workload.step, workload.optimizer)
    names = [phase.phase for phase in findings.step_phases]
    assert names == ["forward", "backward", "optimizer"] * 3
    for before, after in zip(findings.step_phases, findings.step_phases[1:], strict=False):
        assert before.end_ns <= after.start_ns
    peaks = {(phase.step, phase.phase): phase.peak_bytes for phase in findings.step_phases}
    assert peaks[findings.peak.step, findings.peak.phase] == findings.peak.peak_bytes  # type: ignore[index]


def test_a_phase_that_only_frees_has_what_is_in_use_when_it_begins() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    findings = profiled(model, step, optimizer)
    peaks = {(phase.step, phase.phase): phase.peak_bytes for phase in findings.step_phases}
    more = {peaks[step, "optimizer"] - peaks[step, "forward"] for step in findings.attribution.step_names}
    # Gradients, where forward has input, output and their sum.
    assert more == {(64 * 64 + 64) * 4 - (8 * 64 + 8 * 64 + 1) * 4}
