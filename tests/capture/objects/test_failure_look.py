"""Facts of objects as an out of memory passes: owners, operands, idle models, lists in an optimizer's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.capture.objects import failure_look
from tracer.capture.objects.at_failure import CYCLE, ObjectsAtFailure
from tracer.capture.objects.failure_look import look_at_failure

CPU = torch.device("cpu")
LARGE = 1 << 19  # Numbers of float32 in 2 MiB


def failing(call: Any) -> ObjectsAtFailure:
    with pytest.raises(torch.OutOfMemoryError) as raised:
        call()
    return look_at_failure(CPU, raised.value, is_evaluating=False)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_gradients_whose_parameters_no_optimizer_has() -> None:
    frozen, trained = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trained(frozen(torch.ones(1, 4))).sum().backward()
    found = look_at_failure(CPU, None, is_evaluating=False)
    assert frozen.weight.grad is not None and trained.weight.grad is not None
    assert address(frozen.weight.grad) in found.unowned_gradients
    assert address(trained.weight.grad) not in found.unowned_gradients
    assert found.unowned_name.startswith("Linear.")
    assert {address(frozen.weight.grad), address(trained.weight.grad)} <= found.gradients
    del optimizer


def test_operands_of_the_lines_on_the_way(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def join(parts, other):\n"
        "    unused = torch.ones(9)\n"
        "    return fail(torch.cat(parts), other.expand(100, 5))\n"
        "def fail(*tensors):\n"
        "    raise torch.OutOfMemoryError('CUDA out of memory')\n"
    )
    space: dict[str, Any] = {"__name__": "train", "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), space)
    parts, other = [torch.ones(10), torch.ones(20)], torch.ones(1, 5)
    found = failing(lambda: space["join"](parts, other)).operands
    operands = {operand.name: operand for operand in found if operand.file == str(script)}
    assert (operands["parts"].count, operands["parts"].size_bytes, operands["parts"].shape) == (2, 120, (20,))
    assert (operands["other"].size_bytes, operands["other"].line, operands["other"].dtype) == (20, 4, "float32")
    assert "unused" not in operands


class Model(nn.Module):
    """Runs out of memory when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Pipeline:
    """Has a model that is called and one that is not."""

    def __init__(self) -> None:
        first = nn.Linear(1024, 600, bias=False)
        self.encoder, self.decoder = nn.Sequential(first), Model()

    @property
    def weight(self) -> Tensor:
        """Of the model that is not called."""
        (weight,) = self.encoder.parameters()
        return weight


def test_a_model_that_is_not_in_the_call_that_failed() -> None:
    pipeline = Pipeline()
    found = failing(lambda: pipeline.decoder(torch.ones(1, 2)))
    paths = {model.path: model for model in found.idle_models if model.name == "Sequential"}
    assert paths["pipeline.encoder"].addresses == (address(pipeline.weight),)
    assert not any(address(pipeline.decoder.fc.weight) in model.addresses for model in found.idle_models)
    optimizer = torch.optim.SGD(pipeline.encoder.parameters(), 0.1)
    found = failing(lambda: pipeline.decoder(torch.ones(1, 2)))
    assert not any(address(pipeline.weight) in model.addresses for model in found.idle_models)
    del optimizer


def test_holders_and_cycles_of_the_largest_memory() -> None:
    class Node:
        pass

    node, kept = Node(), [torch.ones(LARGE)]
    node.me, node.data = node, torch.ones(LARGE)  # type: ignore[attr-defined]
    lost = address(node.data)  # type: ignore[attr-defined]
    del node
    holders = look_at_failure(CPU, None, is_evaluating=False).holders
    path = {at: holder.path for holder in holders for at in holder.addresses}
    assert path[lost].startswith(CYCLE) and path[address(kept[0])].startswith("kept")


def test_lists_in_the_state_of_an_optimizer() -> None:
    weight = torch.zeros(8, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=4)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = ((weight - torch.arange(8.0)) ** 4).sum()
        value.backward()
        return value

    optimizer.step(loss)
    (state,) = (
        found for found in look_at_failure(CPU, None, is_evaluating=False).listed_states if found.key == "old_dirs"
    )
    assert state.optimizer == "LBFGS" and len(state.addresses) >= 2


def test_a_graph_to_an_input_is_wanted_in_evaluation_too() -> None:
    model = nn.Linear(3, 3).eval()
    x = torch.ones(1, 3, requires_grad=True)
    kept = model(x).square()
    assert not look_at_failure(CPU, None, is_evaluating=True).is_evaluating
    del kept, x
    kept = model(torch.ones(1, 3)).square()
    assert look_at_failure(CPU, None, is_evaluating=True).is_evaluating
    del kept


@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_and_state_of_embeddings(sparse: bool) -> None:
    table = nn.Embedding(10, 4, sparse=sparse)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SparseAdam(table.parameters()) if sparse else torch.optim.Adam(table.parameters())
    )
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    found = look_at_failure(CPU, None, is_evaluating=False).dense_embeddings
    state = optimizer.state[table.weight]["exp_avg"]
    assert (address(state) in found) is not sparse


def test_buffers_of_floating_point() -> None:
    """Weights of a quantized model are buffers of integers."""
    model = nn.BatchNorm1d(LARGE)
    model.register_buffer("weights_in_4_bits", torch.zeros(LARGE, dtype=torch.uint8))
    found = look_at_failure(CPU, None, is_evaluating=False)
    assert address(model.get_buffer("running_mean")) in found.buffers
    assert address(model.get_buffer("weights_in_4_bits")) not in found.buffers


def test_pieces_that_are_asked_about_are_not_always_of_one_layer() -> None:
    """Of twelve steps with eight pieces each, of which every fourth is of the same layer."""
    asked = failure_look._asked_about(dict.fromkeys(range(96), 1 << 20), 24)
    assert len(asked) == 24 and {address % 4 for address in asked} == {0, 1, 2, 3}
