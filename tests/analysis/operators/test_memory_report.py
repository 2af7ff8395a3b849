"""The report's activations: those of one whole step, each invocation once, and their sum what the step saves."""

from __future__ import annotations

import pytest

from tests.exporters.sqlite_reports.test_memory_report import NAMES, findings_of, report
from tests.report_workloads import record_named
from tracer.analysis.operators.invocations import op_instances
from tracer.analysis.operators.memory_report import memory_report
from tracer.analysis.operators.saved_tensors import saved_activations


@pytest.mark.parametrize("name", NAMES)
def test_activations_sum_to_what_their_step_saves(name: str) -> None:
    worst, what = findings_of(record_named(name)).worst, report(name)
    instances = op_instances(worst.recording, worst.attribution)
    saved = saved_activations(worst.recording, worst.attribution, instances, worst.lifetimes, worst.blocks.kind)
    if what.step is None:
        assert (what.activations, len(instances.op)) == ((), 0)
        return
    step = worst.attribution.step_names.index(what.step)
    mine = saved.of_step(step)
    assert what.activation_bytes == int(mine.size_bytes.sum())
    assert sum(entry.num_storages for entry in what.activations) == len(mine.block)
    assert sum(entry.input_bytes for entry in what.activations) == int(mine.size_bytes[mine.is_input].sum())
    for entry in what.activations:
        assert 0 <= entry.invocation < entry.invocations
        assert 0 <= entry.unread_bytes <= entry.size_bytes


def test_it_is_about_the_last_step_with_forward() -> None:
    what = report("zero_grad_at_end")
    assert what.step == findings_of(record_named("zero_grad_at_end")).worst.attribution.step_names[-1]


def test_invocations_that_are_known_already_are_not_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found, findings = report("residual"), findings_of(record_named("residual"))
    instances = op_instances(findings.worst.recording, findings.worst.attribution)
    monkeypatch.setattr("tracer.analysis.operators.memory_report.op_instances", None)
    given = memory_report(findings, instances=instances)
    assert given.activations == found.activations
