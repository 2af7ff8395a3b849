"""Between its hooks an optimizer whose step was made has no parameters, and then its own again."""

from __future__ import annotations

import torch

from tracer.changes.kinds.state_in_8_bits import MadeSteps


def test_torchs_step_finds_nothing_to_update() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    own, steps = optimizer.param_groups, MadeSteps()
    assert steps.begin(optimizer) is own
    steps.made(optimizer)
    assert (optimizer.param_groups[0]["params"], optimizer.param_groups[0]["lr"]) == ([], 1.0)
    optimizer.step()
    assert weight.tolist() == [1, 1]
    assert steps.end(optimizer) and optimizer.param_groups is own
    assert not steps.end(optimizer)
    optimizer.step()
    assert weight.tolist() == [0, 0]


def test_a_step_that_has_no_end_gives_the_parameters_to_the_next() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    own, steps = optimizer.param_groups, MadeSteps()
    steps.made(optimizer)
    assert steps.begin(optimizer) is own and optimizer.param_groups is own
