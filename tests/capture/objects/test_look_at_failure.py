"""What objects tell at a failure: memory that graphs keep although nothing that they lead to is trained; float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.capture.objects.test_plain_tensors import Hostile
from tracer.capture.objects.live_tensors import look_at_failure
from tracer.capture.torch_private import torch_graph


def for_nothing(*tensors: Tensor) -> list[bool]:
    """Whether only graphs of what is not trained keep some tensors."""
    kept = look_at_failure(torch.device("cpu"), None, is_evaluating=False).untrained
    return [tensor.data_ptr() in kept for tensor in tensors]


class Net(nn.Module):
    """Keeps what it squares."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = x * self.weight
        return made, made.square()


def optimizer_of(*nets: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for net in nets for parameter in net.parameters()], 0.1)


def test_a_teachers_graph_and_no_students() -> None:
    """The weights that both graphs keep, and the batch, are none of it: the program has them anyway."""
    teacher, student = Net().eval(), Net()
    optimizer = optimizer_of(student)
    batch = torch.ones(3)
    kept, wanted = teacher(batch)
    own, given = student(batch)
    loss = (wanted - given).square().mean()
    assert for_nothing(kept, own, batch, teacher.weight, wanted) == [True, False, False, False, False]
    in_graphs = look_at_failure(torch.device("cpu"), None, is_evaluating=False).in_graphs
    assert in_graphs is not None
    assert [each.data_ptr() in in_graphs for each in (kept, own, batch, wanted)] == [True, True, True, False]
    del optimizer, loss, given


def test_a_frozen_network_behind_the_one_that_is_trained_is_needed() -> None:
    """As in a loss of features: gradients pass through it."""
    features, trained = Net().eval(), Net()
    optimizer = optimizer_of(trained)
    made, loss = features(trained(torch.ones(3))[1])
    assert for_nothing(made) == [False]
    del optimizer, loss


def test_a_model_may_be_trained_without_an_optimizer_that_is_there() -> None:
    """In training mode it may be soon, unless others were trained without it; one that has a gradient is by hand."""
    other, by_hand, trained = Net(), Net().eval(), Net()
    by_hand.weight.grad = torch.ones(3)
    held = [net(torch.ones(3)) for net in (other, by_hand, trained)]
    made = [first for first, _ in held]
    assert for_nothing(*made) == [False] * 3
    optimizer = optimizer_of(trained)
    assert for_nothing(*made) == [False] * 3
    other.eval()
    assert for_nothing(*made) == [True, False, False]
    other.train()
    trained.weight.grad = torch.ones(3)
    assert for_nothing(*made) == [True, False, False]
    del optimizer


def test_an_optimizer_of_copies_says_nothing_of_a_model() -> None:
    """As one in mixed precision that updates copies of the weights in float32, whose gradients it has cleared."""
    model, masters = Net(), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([masters])
    masters.grad = torch.ones(3)
    optimizer.step()
    made, _ = held = model(torch.ones(3))
    assert for_nothing(made) == [False]
    del held


class Failing(Net):
    """Runs out of memory."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise torch.OutOfMemoryError


def test_a_call_in_evaluation_mode_is_an_inference_where_nothing_is_trained() -> None:
    """Not with an optimizer in the program, nor with a gradient from a backward, nor in training mode."""
    model = Failing().eval()

    def is_evaluating() -> bool:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            model(torch.ones(3))
        return look_at_failure(torch.device("cpu"), raised.value, is_evaluating=False).is_evaluating

    assert is_evaluating()
    optimizer = optimizer_of(Net())
    assert not is_evaluating()
    del optimizer
    model.weight.grad = torch.ones(3)
    assert not is_evaluating()
    model.weight.grad = None
    model.train()
    assert not is_evaluating()


def test_float64_that_only_a_graph_keeps() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    result = (weight * 2).square()  # the product is kept by the graph alone
    (kept,) = torch_graph.saved_by(result.grad_fn)
    single = torch.ones(3)
    found = look_at_failure(torch.device("cpu"), None, is_evaluating=False).float64
    assert [tensor.data_ptr() in found for tensor in (weight, result, kept, single)] == [True, True, True, False]


def test_a_tensor_that_cannot_be_looked_at_hides_no_other() -> None:
    plain = torch.ones(3, dtype=torch.float64)
    hostile = Hostile(plain, plain)
    found = look_at_failure(torch.device("cpu"), None, is_evaluating=False).float64
    assert plain.data_ptr() in found
    del hostile
