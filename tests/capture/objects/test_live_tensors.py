"""A walk finds whatever Python can reach, by the best name there is, runs nobody's code and keeps nothing alive."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.capture.objects import live_tensors as walk
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import live_tensors


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
    saved = loss.grad_fn.next_functions[0][0].next_functions[1][0]._raw_saved_result.data  # the output of exp
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


def test_a_static_cache_of_transformers_is_a_kv_cache_and_a_growing_one_is_held() -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    static, growing = cache_utils.StaticLayer(max_cache_len=8), cache_utils.DynamicLayer()
    keys = torch.zeros(1, 2, 3, 4)
    for layer in (static, growing):
        layer.update(keys.clone(), keys.clone(), cache_kwargs={"cache_position": torch.arange(3)})
    assert found(static.keys, static.values) == [(Role.KV_CACHE, "keys"), (Role.KV_CACHE, "values")]
    assert found(growing.keys) == [HELD]
