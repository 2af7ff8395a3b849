"""A compiled workload, and what is refused; nothing is compiled before it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.pieces import Pieces, tiny_fno
from tracer.workloads.compiling import compiled, without_compiling
from tracer.workloads.module_steps import ModuleWorkload
from tracer.workloads.user_errors import UserModelError
from tracer.workloads.user_model import StepOptions, as_workload


def linear() -> Any:
    return as_workload(nn.Linear(8, 2), device=torch.device("cpu"), options=StepOptions(inputs=["8"]))


@pytest.mark.parametrize("build", [linear, tiny_fno])
def test_the_model_is_called_through_what_compiles_it(build: Any) -> None:
    plain = build()
    found = compiled(plain, ("backend=eager",))
    assert found.model is not plain.model
    assert [one is other for one, other in zip(found.model.parameters(), plain.model.parameters(), strict=True)]
    assert (found.optimizer, found.next_batch) == (plain.optimizer, plain.next_batch)


@pytest.mark.parametrize("make", [Pieces, lambda: as_workload(lambda: None, device=torch.device("cpu"))])
def test_a_workload_that_makes_its_own_step_is_refused(make: Any) -> None:
    with pytest.raises(UserModelError, match="--compile has no meaning for a step function") as caught:
        compiled(make(), ())
    assert "torch.compile in the factory" in caught.value.hint


@pytest.mark.parametrize("argument", ["mode=quick", "speed=high", "backend=none_such", "fullgraph"])
def test_arguments_that_torch_does_not_take_are_a_sentence(argument: str) -> None:
    with pytest.raises(UserModelError) as caught:
        compiled(linear(), (argument,))
    assert argument in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_compiled_where_that_is_asked_for() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise AssertionError("it was compiled")

    model = torch.compile(nn.Linear(8, 2), backend=backend)
    found = ModuleWorkload(model, None, lambda: ((torch.ones(1, 8),), {}), torch.device("cpu"), torch.mean)  # type: ignore[arg-type]
    with without_compiling():
        assert found.forward(found.next_batch()) is not None
