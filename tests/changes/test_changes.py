"""Each change keeps what it says that it keeps, and the lines that are shown do what was rehearsed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from tests.changes.programs import PROGRAMS, advice_for, gpt, lstm, resnet, stack, unet
from tracer.changes.change import Change, Part, Situation
from tracer.changes.kinds import checkpoint, in_place
from tracer.changes.kinds.accumulate import Accumulated, part_of
from tracer.changes.kinds.checkpoint import part_names
from tracer.changes.planner import Advice, RehearsedChanges, advise, applied, candidates
from tracer.changes.recommendation import Keeps
from tracer.rehearsal.rehearse import rehearse
from tracer.workloads.module_steps import ModuleWorkload, StepWorkload, mean_square
from tracer.workloads.workload import Workload, num_micro_batches


def outcome(advice: Advice, words: str) -> RehearsedChanges:
    return next(one for one in advice.outcomes if words in one.name)


def losses_and_parameters(workload: Workload, num_steps: int = 2) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    losses = []
    for _ in range(num_steps):
        total = 0.0
        for _ in range(num_micro_batches(workload)):
            loss = workload.forward(workload.next_batch())
            workload.backward(loss)
            total += float(loss.detach())
        workload.optimizer_step()
        losses.append(total)
    return losses, {name: tensor.detach() for name, tensor in workload.model.named_parameters()}


@pytest.mark.parametrize(
    "name", ["stack", "lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt", "resnet", "unet"))]
)
def test_each_change_keeps_what_it_says(name: str) -> None:
    losses, parameters = losses_and_parameters(PROGRAMS[name]())
    tried = [one for one in advice_for(name).outcomes if one.keeps < Keeps.CONVERGENCE]
    assert tried
    for one in tried:
        changed_losses, changed = losses_and_parameters(applied(PROGRAMS[name](), one.changes))
        if one.keeps == Keeps.BITS:
            assert changed_losses == losses, one.name
            assert all(torch.equal(parameters[key], changed[key]) for key in parameters), one.name
        else:
            assert changed_losses == pytest.approx(losses, rel=1e-4), one.name


def _every_change(name: str) -> list[Change]:
    """Also those that save nothing here."""
    rehearsal = rehearse(PROGRAMS[name](), device="cpu", num_steps=1)
    situation = Situation(PROGRAMS[name](), rehearsal, "cuda", 1, parts=(), batch_size=4)
    return [change for change in candidates(situation) if not change.settings]


def test_each_change_leaves_what_others_use_as_it_was() -> None:
    """A program that was begun goes on to the same bits while copies of it are changed and rehearsed."""
    alone, beside = stack(), stack()
    torch.manual_seed(0)
    expected = [losses_and_parameters(alone, num_steps=1)[0] for _ in range(20)]
    names = []
    for number, change in enumerate(_every_change("stack")):
        state = torch.get_rng_state(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), os.environ.copy()
        hooks = len(nn.modules.module._global_forward_hooks), len(_global_optimizer_post_hooks)
        rehearse(applied(stack(), (change,)), device="cpu", num_steps=1)
        after = torch.get_rng_state(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), os.environ.copy()
        assert torch.equal(state[0], after[0]) and state[1:] == after[1:], change.name
        assert hooks == (len(nn.modules.module._global_forward_hooks), len(_global_optimizer_post_hooks)), change.name
        assert losses_and_parameters(beside, num_steps=1)[0] == expected[number], change.name
        names.append(change.name)
    assert 5 <= len(names) <= 20


def test_what_is_done_together_keeps_it_too() -> None:
    together = advice_for("stack").together
    assert together is not None
    losses, _ = losses_and_parameters(stack())
    changed_losses, _ = losses_and_parameters(applied(stack(), together.changes))
    assert changed_losses == pytest.approx(losses, rel=1e-4)


def test_stepping_in_backward_and_accumulating_are_never_put_together() -> None:
    """A step would be made with a part of the gradient."""
    for name in ("stack", "lstm"):
        together = advice_for(name).together
        families = {change.family for change in together.changes} if together is not None else set()
        assert not {"gradients", "accumulate"} <= families


def test_a_spectrum_that_is_changed_in_place_is_computed_again() -> None:
    """An FNO sets imaginary parts to zero in what a transform returned: what is kept must not be changed."""
    losses, parameters = losses_and_parameters(PROGRAMS["fno"]())
    rehearsal = rehearse(PROGRAMS["fno"](), device="cpu", num_steps=1)
    parts = [Part(f"blocks.{n}", 1 << 20, 1, n) for n in range(2)]
    situation = Situation(PROGRAMS["fno"](), rehearsal, "cpu", 1, parts=parts, batch_size=4)
    (change,) = (one for one in checkpoint.candidates(situation) if "all but matrix products" in one.name)
    changed_losses, changed = losses_and_parameters(applied(PROGRAMS["fno"](), [change]))
    assert changed_losses == losses
    assert all(torch.equal(parameters[key], changed[key]) for key in parameters)


def test_blocks_are_found_in_lists_and_as_attributes() -> None:
    assert part_names(gpt().model) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert part_names(unet().model) == ["down1", "down2", "bottom", "up2", "up1"]
    assert part_names(resnet().model)[:2] == ["stages.0.0", "stages.1.0"]
    assert part_names(lstm().model) == []


def test_the_parts_of_a_batch_are_the_batch() -> None:
    batch = (torch.arange(8).view(4, 2), {"mask": torch.arange(4), "scale": torch.tensor(3.0)})
    parts = [part_of(batch, 4, 2, number) for number in range(2)]
    assert torch.equal(torch.cat([part[0] for part in parts]), batch[0])  # type: ignore[arg-type]
    assert [part[1]["mask"].tolist() for part in parts] == [[0, 1], [2, 3]]
    assert [part[1]["scale"] for part in parts] == [3.0, 3.0]


def test_the_shares_of_an_accumulated_loss_sum_to_the_whole_one() -> None:
    whole = lstm()
    expected = float(whole.forward(whole.next_batch()).detach())
    workload = Accumulated(lstm(), 4)
    assert sum(float(workload.forward(workload.next_batch()).detach()) for _ in range(4)) == pytest.approx(
        expected, rel=1e-5
    )


def _with_gradients_kept() -> Workload:
    """A step function that sets gradients to zero instead of letting go of them."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.zeros(256, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return StepWorkload(step, model, optimizer, torch.device("cpu"))


def test_gradients_that_lie_about_are_let_go_of() -> None:
    found = outcome(advise(_with_gradients_kept, device="cpu"), "zero_grad")
    assert found.saved_bytes >= 0.5 * 2 * 256 * 256 * 4
    assert found.keeps == Keeps.BITS


def test_activations_are_made_in_place_where_backward_does_not_need_their_input() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.SiLU(), nn.Dropout())
    workload = ModuleWorkload(
        model=model,
        optimizer=None,
        next_batch=lambda: ((torch.ones(4, 8),), {}),
        device=torch.device("cpu"),
        loss=mean_square,
    )
    losses, parameters = losses_and_parameters(workload.copy())
    (change,) = in_place.candidates(cast(Situation, SimpleNamespace(model=model)))
    changed_losses, changed = losses_and_parameters(applied(workload, [change]))
    assert [getattr(layer, "inplace", None) for layer in model] == [None, True, None, False, True]
    assert changed_losses == losses
    assert all(torch.equal(parameters[key], changed[key]) for key in parameters)


def test_a_device_is_told_of_fused_optimizers_and_of_its_allocator() -> None:
    def build() -> Workload:
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
        return ModuleWorkload(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters()),
            next_batch=lambda: ((torch.ones(4, 2048),), {}),
            device=torch.device("cpu"),
            loss=mean_square,
        )

    advice = advise(build, device="cuda")
    fused = outcome(advice, "fused=True")
    # foreach holds temporaries of the size of all parameters; what is largest then has cuBLAS's workspace in it.
    assert fused.saved_bytes > 0.8 * 4 * 2048 * 2048 * 4
    assert fused.reserved_bytes is not None
    assert not any(one.saved_bytes for one in advice.outcomes if one.changes[0].settings)
