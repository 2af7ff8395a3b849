"""Advice on a workload touches nothing of it, and what was made for real is set against what was rehearsed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.changes.programs import stack
from tracer.changes.change import Change
from tracer.changes.planner import advise
from tracer.changes.recommendation import Group, Measured
from tracer.exporters.json_documents.advice import advice_values
from tracer.exporters.screen.advice import print_advice
from tracer.exporters.screen.terminal import screen
from tracer.null_gpu.cards import A100, UNNAMED, Card
from tracer.sessions.trials import advising
from tracer.sessions.trials.advising import advise_on, loss_is_sum, measure, run_for_real, shown_on_null_gpu
from tracer.units import MIB

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")


@pytest.mark.slow
def test_nothing_of_the_caller_is_touched(capsys: pytest.CaptureFixture[str]) -> None:
    workload = stack()
    workload.backward(workload.forward(workload.next_batch()))
    workload.optimizer.step()  # type: ignore[union-attr]
    tensors = [*workload.model.parameters(), *workload.model.buffers()]
    tensors += [one.grad for one in workload.model.parameters() if one.grad is not None]
    tensors += [
        each
        for state in workload.optimizer.state.values()  # type: ignore[union-attr]
        for each in state.values()
        if isinstance(each, torch.Tensor)
    ]
    before = [(tensor, tensor.detach().clone(), tensor._version) for tensor in tensors]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr, call-overload]
    report = advise_on(stack, workload, verify=True)
    assert all(torch.equal(tensor, kept) and tensor._version == version for tensor, kept, version in before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index, union-attr, call-overload]
    assert random.getstate() == states[2]
    _check_told(report, capsys)


def _check_told(report: object, capsys: pytest.CaptureFixture[str]) -> None:
    values = advice_values(report, computed=True)  # type: ignore[arg-type]
    found = [row for row in values["rows"] if row["how_found"] == "measured"]
    assert found
    for row in found:
        assert row["measured"]["saves_bytes"] == pytest.approx(row["saves_bytes"], rel=0.05, abs=MIB / 4)
        if row["results"] == "same results":
            assert row["measured"]["changed_losses"] == row["measured"]["losses"]
    with screen() as console:
        print_advice(report, console)  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert "What would help" in text
    assert "checkpoint(" not in text.splitlines()[3]
    assert "Measured, " in text


@pytest.mark.slow
def test_a_loss_that_is_a_sum_is_accumulated_without_being_divided() -> None:
    def build() -> object:
        from dataclasses import replace

        workload = stack()
        return replace(workload, loss=lambda output, target: (output - target).square().sum() * 1e-4)  # type: ignore[type-var]

    advice = advise(build, device="cpu")  # type: ignore[arg-type]
    change = next(one for one in advice.outcomes if "accumulate" in one.name)
    before = run_for_real(build)  # type: ignore[arg-type]
    assert loss_is_sum(build, change.changes, before)  # type: ignore[arg-type]
    assert not loss_is_sum(stack, change.changes, run_for_real(stack))
    measured = measure(build, change.changes, before, divides=False)  # type: ignore[arg-type]
    assert measured.changed_losses == pytest.approx(measured.losses, rel=1e-4)


def test_what_hardly_lowers_the_measured_peak_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made for real, one change saves 0.9 % of a peak of 1,000,000 bytes and the others 1 %."""
    of_run = advising.run_for_real(stack)
    saved: dict[str, int] = {}

    def measured(build: object, changes: Sequence[Change], before: object, *, divides: bool) -> Measured:
        name = " + ".join(change.name for change in changes)
        saved[name] = 9_000 if not saved else 10_000
        return Measured(saved[name], 0, 1.0, 1.0, (), ())

    monkeypatch.setattr(advising, "measure", measured)
    monkeypatch.setattr(advising, "run_for_real", lambda build: replace(of_run, peak_bytes=1_000_000))
    report = advise_on(stack, stack(), verify=True)
    first, *others = saved
    told = {row.change: row for row in (*report.rows, *report.others, report.together) if row is not None}
    assert first not in told
    assert dict(report.not_tried)[first] == "made for real, it saves less than 1 % of the measured peak"
    assert others
    assert all(told[name].measured is not None and told[name].known_bytes == 10_000 for name in others)


@pytest.mark.slow
def test_on_the_null_gpu_each_is_made_and_listed_by_what_it_saves_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saves a byte more than the one before it, so that a group comes out the other way round."""
    made: list[str] = []

    def measured(build: object, changes: Sequence[Change], before: object, *, divides: bool) -> Measured:
        made.append(" + ".join(change.name for change in changes))
        return Measured(10_000 + len(made), 0, None, None, (), ())

    of_run = advising._RealRun(1_000_000, (), None)
    monkeypatch.setattr(advising, "measure", measured)
    monkeypatch.setattr(advising, "run_for_real", lambda build: of_run)
    monkeypatch.setattr(advising, "limited_to", lambda limit_bytes, num_devices: nullcontext())
    advice = advise(stack, device="cuda")
    report = shown_on_null_gpu(advice, stack)
    names = [outcome.name for outcome in advice.best if not any(change.settings for change in outcome.changes)]
    assert report.peak_bytes == 1_000_000 and made[: len(names)] == names
    listed = [row for row in report.rows if row.how_found == "measured"]
    assert sorted(row.change for row in listed) == sorted(names) and len(names) > 3
    groups = [Group[row.group.upper()] for row in listed]
    assert groups == sorted(groups) and len(set(groups)) < len(groups)
    for group in set(groups):
        saved = [row.known_bytes for row, own in zip(listed, groups, strict=True) if own == group]
        assert saved == sorted(saved, reverse=True)


@pytest.mark.parametrize(
    ("device", "name", "label"), [("cpu", "", ""), ("cuda:0", A100.name, A100.label), ("cuda:0", "NVIDIA P106-100", "")]
)
def test_changes_are_rehearsed_on_the_card_at_hand_and_a_known_ones_cudnn_is_asked(
    device: str, name: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        pass

    def asked(build: object, *, card: Card, cudnn: object, **options: object) -> None:
        cards.append(card)
        assert cudnn == f"cuDNN of {label}"
        raise AskedError

    cards: list[Card] = []
    gpu = SimpleNamespace(name=name, total_memory=80 << 30, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(advising, "advise", asked)
    monkeypatch.setattr(advising, "cudnn_of", lambda card: nullcontext(f"cuDNN of {card.label}"))
    workload = stack()
    if device != "cpu":
        monkeypatch.setattr(advising, "random_states_kept", lambda of: nullcontext())
        workload = SimpleNamespace(device=torch.device(device))  # type: ignore[assignment]
    with pytest.raises(AskedError):
        advise_on(stack, workload)
    assert cards == [UNNAMED if device == "cpu" else Card(label, 80 << 30, capability=(9, 0), num_sms=132)]
