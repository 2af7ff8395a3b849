"""What is saved on the host is not on the device, and evaluation without gradients is offered where it is safe."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tracer.allocator.settings import parse_settings
from tracer.changes.kinds import allocator_settings, saved_on_host
from tracer.changes.planner import Advice, _Trials, advise, applied
from tracer.rehearsal.cuda_rules import RULE_NAMES
from tracer.rehearsal.rehearse import rehearse
from tracer.sessions.trials.advising import measure, run_for_real
from tracer.units import MIB
from tracer.workloads.module_steps import StepWorkload, SupervisedWorkload
from tracer.workloads.workload import Workload


class _Chain(nn.Module):
    """Eight results of 1 MiB, each saved for the backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        for _ in range(8):
            x = x.sigmoid()
        return x


def chain(*, on_host: bool = False, rows: int = 512) -> Workload:
    model = _Chain()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mean()

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return _Chain.forward(model, x)

    if on_host:
        model.forward = forward  # type: ignore[method-assign]
    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        next_batch=lambda: (torch.randn(rows, 512), torch.zeros(())),
        loss=loss,
        device=torch.device("cpu"),
        description={},
    )


def peak_bytes(workload: Workload, rules: list[str] | None = None) -> int:
    return rehearse(workload, device="cuda", num_steps=2, rules=rules).memory.peak_allocated_bytes


def test_what_a_program_saves_on_the_host_is_not_on_the_device() -> None:
    """On the device are the batch and eight saved results; or the batch, one result, its gradient and what that makes.

    The batch is saved too: it lies there anyway, and what backward copies back of it is one more.
    """
    whole, on_host = peak_bytes(chain()), peak_bytes(chain(on_host=True))
    assert 9 * MIB <= whole <= 12 * MIB
    assert 3 * MIB <= on_host <= 5 * MIB
    without_the_rule = [name for name in RULE_NAMES if name != "saved-on-host"]
    assert peak_bytes(chain(on_host=True), without_the_rule) >= whole


def test_the_change_saves_what_a_program_that_does_it_saves() -> None:
    advice = advise(chain, device="cuda")
    (found,) = (one for one in advice.outcomes if one.changes[0].family == "offload")
    assert found.saved_bytes >= 5 * MIB
    assert found.peak_bytes == peak_bytes(applied(chain(), found.changes))
    assert found.more_flops == 0
    assert all(change.family != "checkpoint" or one is not found for one in advice.outcomes for change in one.changes)


def test_on_the_cpu_there_is_no_other_place_for_saved_tensors() -> None:
    assert list(saved_on_host.candidates(_Trials(chain, "cpu", {}).situation)) == []
    assert len(list(saved_on_host.candidates(_Trials(chain, "cuda", {}).situation))) == 1


def _with_family(advice: Advice, family: str) -> list[str]:
    return [one.name for one in advice.outcomes if one.changes[0].family == family]


def evaluating(*, trains_in_evaluation_mode: bool = False, without_gradients: bool = False) -> StepWorkload:
    """A step that also evaluates, on eight times as many samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    generator = torch.Generator().manual_seed(0)

    def step() -> float:
        model.train(not trains_in_evaluation_mode)
        loss = F.mse_loss(model(torch.randn(64, 32, generator=generator)), torch.zeros(64, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.set_grad_enabled(not without_gradients):
            return model(torch.randn(512, 32, generator=generator)).square().mean().item() + float(loss.detach())

    return StepWorkload(step=step, model=model, optimizer=optimizer, device=torch.device("cpu"))


def test_evaluation_with_gradients_is_offered_no_grad_and_saves_what_was_rehearsed() -> None:
    advice = advise(evaluating, device="cpu")
    (found,) = (one for one in advice.outcomes if one.changes[0].family == "evaluation")
    before = run_for_real(evaluating)
    measured = measure(evaluating, found.changes, before)
    assert measured.saves_bytes > 0.1 * before.peak_bytes
    assert abs(measured.saves_bytes - found.saved_bytes) <= 0.05 * measured.saves_bytes
    assert measured.changed_losses == measured.losses


def test_it_is_not_offered_where_it_is_done_or_where_training_is_in_evaluation_mode() -> None:
    assert _with_family(advise(lambda: evaluating(without_gradients=True), device="cpu"), "evaluation") == []
    advice = advise(lambda: evaluating(trains_in_evaluation_mode=True), device="cpu")
    assert _with_family(advice, "evaluation") == []
    assert all("no_grad" not in name for name, _ in advice.not_tried)


def test_settings_of_the_device_hold_for_the_program_as_it_is_and_with_each_change() -> None:
    spelled = "large_segment_size_mb:12"
    trials = _Trials(lambda: chain(rows=520), "cuda", {}, spelled)
    memory = trials.situation.rehearsal.on_device(parse_settings(spelled))
    assert trials.base.reserved_bytes == memory.peak_reserved_bytes
    assert memory.peak_reserved_bytes != trials.situation.rehearsal.memory.peak_reserved_bytes
    same = next(one for one in allocator_settings.candidates(trials.situation) if one.settings == spelled)
    outcome = trials.outcome((same,))
    assert outcome is not None
    assert outcome.saved_reserved_bytes == 0
