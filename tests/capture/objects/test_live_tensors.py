"""Walks over all that Python can reach: what is found and named, and what is looked at when memory runs out."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from tests.capture.objects.test_known_storages import Hostile
from tracer.capture.objects import live_tensors as walk
from tracer.capture.objects.failure_look import look_at_failure
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import live_tensors
from tracer.capture.torch_private import torch_graph


def found(*tensors: Tensor) -> list[tuple[Role, str] | None]:
    """Role and name under which each was found first."""
    roles: dict[int, tuple[Role, str]] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for role, name, each in live_tensors().tensors:
            if isinstance(each, torch.UntypedStorage) or (each.layout is torch.strided and each.device.type == "cpu"):
                storage = each if isinstance(each, torch.UntypedStorage) else each.untyped_storage()
                roles.setdefault(storage.data_ptr(), (role, name))
        return [roles.get(tensor.untyped_storage().data_ptr()) for tensor in tensors]


HELD = (Role.HELD, "")


def test_a_tensor_that_anything_holds_is_found() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.cache = {"a": [torch.randn(3)]}  # type: ignore[attr-defined]
    assert found(holder.cache["a"][0]) == [HELD]  # type: ignore[attr-defined]


def test_a_storage_that_no_tensor_shows_is_found() -> None:
    tensor = torch.randn(300)
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    del tensor
    held = [each for _, _, each in live_tensors().tensors if isinstance(each, torch.UntypedStorage)]
    assert address in [each.data_ptr() for each in held]
    assert storage.nbytes() == 1200


def test_a_teacher_has_its_class_and_dotted_names() -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    teacher = Teacher()
    weight, mean = teacher.body[0].weight, teacher.body[1].running_mean
    assert isinstance(weight, Tensor)
    assert isinstance(mean, Tensor)
    weight.grad = torch.ones_like(weight)
    assert found(weight, mean, weight.grad) == [
        (Role.PARAMETER, "Teacher.body.0.weight"),
        (Role.BUFFER, "Teacher.body.1.running_mean"),
        (Role.GRADIENT, "Teacher.body.0.weight"),
    ]


def test_an_optimizers_state_is_named_after_its_parameter() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state[layer.weight]["exp_avg"]
    assert found(state) == [(Role.OPTIMIZER_STATE, "Linear.weight.exp_avg")]


def test_a_kept_loss_keeps_what_its_graph_saved() -> None:
    """No Python object is left for the activation between the two layers; the graph behind the loss leads to it."""
    addresses: list[int] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            addresses.append(x.untyped_storage().data_ptr())
            return x.exp()

    model = nn.Sequential(nn.Linear(50, 60), Spy(), nn.Linear(60, 1))
    loss = model(torch.randn(4, 50)).sum()
    (saved,) = torch_graph.saved_by(loss.grad_fn.next_functions[0][0].next_functions[1][0])  # the output of exp
    address = saved.untyped_storage().data_ptr()
    del saved

    def is_found() -> bool:
        return any(
            isinstance(each, Tensor) and each.layout is torch.strided and each.untyped_storage().data_ptr() == address
            for _, _, each in live_tensors().tensors
            if not isinstance(each, torch.UntypedStorage) and each.device.type == "cpu"
        )

    assert is_found()
    loss.backward()
    assert not is_found()


def test_what_a_hook_has_packed_is_not_unpacked() -> None:
    unpacked: list[object] = []

    def unpack(packed: Tensor) -> Tensor:
        unpacked.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), unpack):
        loss = torch.randn(5, requires_grad=True).exp().sum()
    live_tensors()
    assert unpacked == []
    loss.backward()
    assert len(unpacked) == 1


def test_nobodys_code_is_called() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AssertionError("a proxy was asked what it is")

    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{function} was called")

    class Odd(nn.Linear):
        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("was asked for its parameters")

        def children(self) -> Any:
            raise AssertionError("was asked for its children")

        def parameters(self, recurse: bool = True) -> Any:
            raise AssertionError("was asked for its parameters")

    kept = [Proxy(), Odd(3, 2)]
    loud = torch.randn(7).as_subclass(Loud)
    assert found(loud) == [HELD]
    assert len(kept) == 2


def test_a_leak_of_many_graphs_is_followed_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [torch.randn(2, requires_grad=True).exp().sin().sum() for _ in range(10)]
    assert live_tensors().is_complete
    monkeypatch.setattr(walk, "MAX_NODES", 5)
    assert not live_tensors().is_complete
    assert len(losses) == 10


def test_a_walk_changes_nothing_and_keeps_nothing() -> None:
    tensor = torch.randn(3, requires_grad=True)
    result = tensor.exp()
    state, version = torch.get_rng_state(), tensor._version
    gc.disable()
    try:
        live_tensors()
        reference = weakref.ref(result)
        del result
        assert reference() is None
    finally:
        gc.enable()
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_module_has_names_too() -> None:
    scripted = torch.jit.script(nn.Linear(3, 2))
    ((role, name),) = found(dict(scripted.named_parameters())["weight"])  # type: ignore[misc]
    assert role == Role.PARAMETER
    assert name.endswith(".weight")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_buckets_of_gradients_are_as_large_as_all_gradients_at_first(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 5))
        assert live_tensors().bucket_bytes == {4 * (15 + 5)}
        assert model is not None
    finally:
        torch.distributed.destroy_process_group()


def test_the_cache_of_an_attention_layer_is_a_kv_cache() -> None:
    """VLLM's layers hold parts of one allocation, a tensor or a list of them, as a plain attribute."""

    class Attention(nn.Module):
        def __init__(self, cache: Tensor | list[Tensor]) -> None:
            super().__init__()
            self.kv_cache = cache

    whole, single = torch.zeros(4, 30), torch.zeros(3)
    layers = [Attention(whole[2:]), Attention([single])]
    assert found(whole, single) == [(Role.KV_CACHE, "kv_cache")] * 2
    assert len(layers) == 2


@pytest.mark.slow  # transformers' import
def test_a_static_cache_of_transformers_is_a_kv_cache_and_a_growing_one_is_held() -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    static, growing = cache_utils.StaticLayer(max_cache_len=8), cache_utils.DynamicLayer()
    keys = torch.zeros(1, 2, 3, 4)
    for layer in (static, growing):
        layer.update(keys.clone(), keys.clone(), cache_kwargs={"cache_position": torch.arange(3)})
    assert found(static.keys, static.values) == [(Role.KV_CACHE, "keys"), (Role.KV_CACHE, "values")]
    assert found(growing.keys) == [HELD]


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


def test_a_freed_storage_of_which_torch_has_a_weak_reference_is_none() -> None:
    """As torch.compile has of what it traced: torch 2.7 and 2.9 list its object, and break where it is read."""
    tensor = torch.empty(300)
    reference = StorageWeakRef(tensor.untyped_storage())
    del tensor
    held = [each for _, _, each in live_tensors().tensors if isinstance(each, torch.UntypedStorage)]
    assert reference.expired() and reference.cdata not in [each._cdata for each in held]
