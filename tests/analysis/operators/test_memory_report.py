"""The report's activations: those of one whole step, each invocation once, and their sum what the step saves."""

from __future__ import annotations

import pytest

from tests.exporters.sqlite_reports.test_memory_report import NAMES, findings_of, report
from tests.histories import known_of
from tests.report_workloads import record_named
from tracer.analysis.operators.invocations import op_instances
from tracer.analysis.operators.memory_report import memory_report, saved_activations, weights
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.parameter_origins import Parameter, describe_parameters
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.capture.sources.source_line import SourceLine


@pytest.mark.parametrize("name", NAMES)
def test_activations_sum_to_what_their_step_saves(name: str) -> None:
    worst, what = findings_of(record_named(name)).worst, report(name)
    instances = op_instances(worst.recording, worst.attribution)
    saved = saved_activations(worst, instances)
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


def test_a_parameter_keeps_its_lines_and_a_gradient_is_no_larger_than_it() -> None:
    lines = (SourceLine("/home/me/net.py", 7), SourceLine("/home/me/run.py", 3))
    parameter = Parameter("fc.weight", 400, True, "fc", lines)
    known = known_of((1, 10, 4096, Role.GRADIENT, "fc.weight"))
    (weight,) = weights([parameter], [], known)
    assert (weight.name, weight.size_bytes, weight.module, weight.frames) == ("fc.weight", 400, "fc", lines)
    assert weight.grad_size_bytes == 400, "it may be a part of a larger buffer"
    (alone,) = weights([parameter], [])
    assert alone.grad_size_bytes == 0


@pytest.mark.parametrize("name", ["zero_grad_at_start", "zero_grad_at_end", "shared_weights", "residual", "lstm"])
def test_gradients_are_those_of_the_step_and_not_what_is_left_of_them(name: str) -> None:
    what = report(name)
    assert [weight.grad_size_bytes for weight in what.weights] == [weight.size_bytes for weight in what.weights]


def test_gradients_that_were_observed_decide() -> None:
    run = record_named("auxiliary_head")
    model = run.workload.model
    assert model is not None
    assert report("auxiliary_head").grad_bytes == 0, "four gradients for six parameters: which four cannot be told"
    observer = StorageObserver()
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    observer.observe((Role.GRADIENT, name, p) for name, p in model.named_parameters() if name in names)
    what = memory_report(findings_of(run), parameters=describe_parameters(model), known=observer.observations())
    assert {weight.name for weight in what.weights if weight.grad_size_bytes} == names


def test_without_backward_there_are_no_gradients() -> None:
    assert report("inference_no_grad").grad_bytes == report("inference_no_grad").activation_bytes == 0
