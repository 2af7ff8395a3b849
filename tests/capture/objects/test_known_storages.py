"""An observation names tensors, plain or not, by their roles, and leaves no trace on them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.histories import known_of
from tracer.answers.failed_allocation import held_now, last_seen
from tracer.blocks.kinds import Kind
from tracer.capture.device.device_blocks import DeviceBlocks
from tracer.capture.objects import storage_observer
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.storage_columns import plain_tensors
from tracer.capture.objects.storage_observer import StorageObserver, input_tensors, model_tensors


def observe(*tensors: tuple[Role, str, Tensor]) -> list[tuple[str, Role, int, int, str]]:
    """Name, role, address, bytes and device of each observation."""
    observer = StorageObserver()
    observer.observe(tensors)
    return rows(observer.observations())


def rows(known: KnownStorages) -> list[tuple[str, Role, int, int, str]]:
    columns = (known.name, known.role, known.address, known.size_bytes, known.device)
    return [
        (known.names[name], Role(role), address, size, known.devices[device])
        for name, role, address, size, device in zip(*(column.tolist() for column in columns), strict=True)
    ]


def inputs(*tensors: Tensor) -> list[tuple[Role, str, Tensor]]:
    return [(Role.INPUT, f"x{index}", tensor) for index, tensor in enumerate(tensors)]


# ---- one observation -------------------------------------------------------------------------------------------------


def test_address_and_size_are_those_of_the_storage() -> None:
    base = torch.zeros(10, 4)
    view = base[3:5, 1]
    assert observe((Role.PARAMETER, "w", view)) == [("w", Role.PARAMETER, base.data_ptr(), 160, "cpu")]


def test_a_storage_counts_once_a_look_and_the_first_name_stays() -> None:
    base = torch.zeros(8)
    observer = StorageObserver()
    observer.observe([(Role.PARAMETER, "first", base), (Role.BUFFER, "second", base[2:])])
    observer.observe([(Role.PARAMETER, "first", base)])
    assert [row[0] for row in rows(observer.observations())] == ["first", "first"]


def test_looks_are_in_order_of_time_and_each_is_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5
    kept = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    # Not a list of times that ends: storages of other tests that die here ask for the time as well.
    monkeypatch.setattr(storage_observer.time, "time_ns", lambda: now)  # type: ignore[attr-defined]
    observer = StorageObserver()
    observer.observe(inputs(*kept[:2]))
    now = 9
    observer.observe(inputs(kept[2]))
    assert observer.observations().time_ns.tolist() == [5, 5, 9]


@pytest.mark.parametrize("make", [lambda: torch.empty(0), lambda: torch.empty(3, device="meta")])
def test_tensors_without_a_place_are_passed_over(make: Callable[[], Tensor]) -> None:
    assert observe((Role.INPUT, "x", make())) == []


def test_a_sparse_tensor_is_its_values_and_its_indices() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (5,), check_invariants=True)
    found = {(address, size) for _, _, address, size, _ in observe((Role.GRADIENT, "g", sparse))}
    assert found == {(sparse._values().data_ptr(), 8), (sparse._indices().data_ptr(), 16)}


def test_columns_of_different_length_are_refused() -> None:
    good = known_of((0, 1, 2, Role.INPUT, "x"))
    with pytest.raises(ValueError, match="differ in length"):
        KnownStorages(good.time_ns, good.address, good.size_bytes[:0], good.role, good.name, good.device, (), ())


def test_a_look_keeps_nothing_alive_and_touches_nothing() -> None:
    tensor = torch.randn(5, requires_grad=True)
    tensor.grad = torch.ones(5)
    version, random_state = tensor._version, torch.get_rng_state()
    observer = StorageObserver()
    observer.observe([(Role.PARAMETER, "w", tensor), (Role.GRADIENT, "w", tensor.grad)])
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), random_state)
    ref = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert ref() is None
    assert len(rows(observer.observations())) == 2


# ---- of models, optimizers and batches -------------------------------------------------------------------------------


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(6, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def names(tensors: Any) -> list[tuple[str, str]]:
    return [(role.name, name) for role, name, _ in tensors]


def test_a_model_is_its_parameters_gradients_and_buffers() -> None:
    model, _ = trained()
    parameters = ["0.weight", "0.bias", "1.weight", "1.bias"]
    buffers = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert names(model_tensors(model)) == [
        *(("PARAMETER", name) for name in parameters),
        *(("GRADIENT", name) for name in parameters),
        *(("BUFFER", name) for name in buffers),
    ]
    assert next(model_tensors(model))[2] is next(model.parameters())
    model.zero_grad()
    assert "GRADIENT" not in dict(names(model_tensors(model)))


def test_a_batch_may_be_nested() -> None:
    x, y, z = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    batch = {"image": x, "more": [y, (z, "a label", 3, None)]}
    found = [(name, tensor) for _, name, tensor in input_tensors(batch)]
    assert [name for name, _ in found] == ["batch.image", "batch.more[0]", "batch.more[1][0]"]
    assert all(tensor is one for (_, tensor), one in zip(found, (x, y, z), strict=True))
    assert names(input_tensors(x)) == [("INPUT", "batch")]
    assert names(input_tensors(7)) == []


def test_a_storage_that_a_walk_found_is_seen_to_go_when_its_last_holder_goes() -> None:
    """And not with the tensor that it was found by; nothing is kept alive, and every storage goes once."""
    observer, tensor, other = StorageObserver(), torch.zeros(40), torch.zeros(30)
    address, kept = tensor.data_ptr(), other.view(5, 6)
    observer.observe(inputs(tensor, other), is_walk=True)
    observer.observe(inputs(tensor, other), is_walk=True)
    assert observer.observations().ends_address.tolist() == []
    del tensor, other
    known = observer.observations()
    assert known.ends_address.tolist() == [address]
    assert known.walks_ns[-1] <= known.ends_ns[0] <= time.time_ns()
    assert known.devices[known.ends_device[0]] == "cpu"
    del kept
    assert len(observer.observations().ends_address) == 2


def test_what_no_walk_found_and_what_goes_after_the_end_is_not_watched() -> None:
    observer, seen, walked = StorageObserver(), torch.zeros(40), torch.zeros(30)
    observer.observe(inputs(seen))
    observer.observe(inputs(walked), is_walk=True)
    observer.stop()
    del seen, walked
    assert observer.observations().ends_address.tolist() == []


def test_a_workspace_is_where_no_tensor_lies() -> None:
    """A walk takes back tensors that a look at fewer of them has taken for workspaces."""
    tensor, other = torch.zeros(4), torch.zeros(4)
    observer = StorageObserver()
    blocks = DeviceBlocks(workspaces=((tensor.data_ptr(), 16), (other.data_ptr(), 16), (1 << 20, 8519680)))
    observer.observe([(Role.HELD, "tensor", tensor)], blocks={"cpu": blocks})
    found = rows(observer.observations())
    assert [(name, role) for name, role, *_ in found] == [("tensor", Role.HELD), *[("cuBLAS", Role.WORKSPACE)] * 2]
    assert found[2][2:4] == (1 << 20, 8519680)
    assert last_seen(observer.observations()) == {}
    observer.observe([(Role.HELD, "tensor", tensor), (Role.HELD, "other", other)], is_walk=True)
    assert [name for name, *_ in rows(observer.observations())] == ["tensor", "cuBLAS", "tensor", "other"]


def test_a_bucket_of_gradients_is_where_nothing_lies_that_has_a_name() -> None:
    parameter, held = torch.zeros(4), torch.zeros(4)
    observer = StorageObserver()
    blocks = DeviceBlocks(buckets=((parameter.data_ptr(), 16), (held.data_ptr(), 16), (1 << 20, 512)))
    observer.observe([(Role.PARAMETER, "weight", parameter), (Role.HELD, "", held)], blocks={"cpu": blocks})
    known = observer.observations()
    buckets = [at for at, role in zip(known.address.tolist(), known.role.tolist(), strict=True) if role == Role.BUCKET]
    assert buckets == [held.data_ptr(), 1 << 20]
    assert held_now(known, "cpu").named == {
        parameter.data_ptr(): Kind.PARAMETER,
        held.data_ptr(): Kind.COMMUNICATION,
        1 << 20: Kind.COMMUNICATION,
    }


def test_a_tensor_in_idle_memory_holds_nothing_until_a_look_says_otherwise() -> None:
    """As CUDA graphs leave them behind: the allocator counts their memory as free."""
    idle, used = torch.zeros(4), torch.zeros(4)
    begin = idle.data_ptr()
    observer = StorageObserver()
    observer.observe([*inputs(idle, used)], blocks={"cpu": DeviceBlocks(idle=((begin - 8, begin + 64),))})
    observer.observe(inputs(idle))
    piece = ("", Role.IDLE, begin - 8, 72, "cpu")
    assert rows(observer.observations()) == [("x1", Role.INPUT, used.data_ptr(), 16, "cpu"), piece]
    observer.observe(inputs(idle), blocks={"cpu": DeviceBlocks()})
    assert rows(observer.observations())[2:] == [("x0", Role.INPUT, begin, 16, "cpu")]
    assert last_seen(observer.observations()) == {begin: Kind.INPUT, used.data_ptr(): Kind.INPUT}


def test_a_tensor_outside_of_the_allocators_segments_holds_nothing() -> None:
    """As a view of pinned host memory on a GPU: each byte is counted once, though two storages show a part of it."""
    host = np.zeros(64, np.uint8)
    first, second, used = torch.from_numpy(host[:48]), torch.from_numpy(host[32:]), torch.zeros(4)
    begin = first.data_ptr()
    observer = StorageObserver()
    blocks = DeviceBlocks(segments=((4096, 8192), (used.data_ptr(), used.data_ptr() + 16)))
    observer.observe(inputs(first, second, used), blocks={"cpu": blocks})
    pieces = [("", Role.IDLE, begin, 48, "cpu"), ("", Role.IDLE, begin + 48, 16, "cpu")]
    assert rows(observer.observations()) == [("x2", Role.INPUT, used.data_ptr(), 16, "cpu"), *pieces]
    assert observer.foreign_bytes["cpu"] == 64


def test_a_storage_takes_what_the_allocators_block_does() -> None:
    """A block may be larger than what was asked for; a look without blocks has the storage's own size."""
    tensor, other = torch.zeros(4), torch.zeros(4)
    observer = StorageObserver()
    observer.observe(inputs(tensor, other), blocks={"cpu": DeviceBlocks(sizes={tensor.data_ptr(): 512})})
    observer.observe(inputs(tensor), blocks={"cuda:0": DeviceBlocks(sizes={tensor.data_ptr(): 512})})
    assert [size for *_, size, _ in rows(observer.observations())] == [512, 16, 16]


def test_a_wrappers_own_storage_has_no_memory() -> None:
    """Python may hold the storage of a subclass that wraps others: asked for its address, it raises."""

    class Wrapper(Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise NotImplementedError

    wrapper = Tensor._make_wrapper_subclass(Wrapper, (4,))  # type: ignore[attr-defined]
    storage, plain = wrapper.untyped_storage(), torch.zeros(2)
    with pytest.raises(RuntimeError, match="invalid python storage"):
        storage.data_ptr()
    observer = StorageObserver()
    observer.observe([(Role.HELD, "", storage), (Role.HELD, "x", plain)])
    assert rows(observer.observations()) == [("x", Role.HELD, plain.data_ptr(), 8, "cpu")]
    assert not observer.unobserved


def addresses(tensor: Tensor) -> list[int]:
    return [part.untyped_storage().data_ptr() for part in plain_tensors(tensor)]


class Pair(Tensor):
    """A tensor made of two others, as a quantized weight is made of values and scales."""

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Pair:
        return Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Pair:
        return Pair(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("an observer runs no operator on a tensor of somebody's making")


class Hostile(Pair):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        raise ValueError("not for you")


def test_a_plain_tensor_is_itself() -> None:
    tensor = torch.zeros(4)
    assert addresses(tensor[1:]) == [tensor.data_ptr()]


@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "sparse_coo"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_is_its_values_and_indices(layout: str) -> None:
    dense = torch.eye(4)
    blocks = {"blocksize": (2, 2)} if "bs" in layout else {}
    sparse = dense.to_sparse(layout=getattr(torch, layout), **blocks)  # type: ignore[call-overload]
    parts = list(plain_tensors(sparse))
    expected = 2 if layout == "sparse_coo" else 3
    assert len(parts) == expected
    assert sum(part.dtype == torch.float32 for part in parts) == 1
    assert sum(part.dtype == torch.int64 for part in parts) == expected - 1


def test_a_tensor_made_of_others_is_those() -> None:
    first, second = torch.zeros(3), torch.ones(2)
    assert addresses(Pair(first, Pair(second, first))) == [first.data_ptr(), second.data_ptr(), first.data_ptr()]


class OnAMesh(Pair):
    """It names what is no tensor as well, as a DTensor names its mesh of devices."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "mesh"], None

    mesh = ("cpu", 0)


def test_what_is_named_beside_tensors_is_passed_over() -> None:
    first = torch.zeros(3)
    assert addresses(OnAMesh(first, torch.ones(2))) == [first.data_ptr()]


def test_a_jagged_tensor_is_its_values_and_offsets() -> None:
    values, offsets = torch.randn(5, 2), torch.tensor([0, 2, 5])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert {values.data_ptr(), offsets.data_ptr()} <= set(addresses(jagged))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_below_a_transform_lies_the_tensor_itself(transform: Callable[..., Any]) -> None:
    seen: list[int] = []

    def function(x: Tensor) -> Tensor:
        seen.extend(addresses(x))
        return x.sum()

    tensor = torch.randn(3, 4)
    transform(function)(tensor)
    assert seen == [tensor.data_ptr()]


def test_a_tensor_without_a_storage_is_passed_over() -> None:
    """As vectorize=True of torch.autograd.functional makes them; they may be in the frames of a failure."""
    observer = StorageObserver()

    def function(x: Tensor) -> Tensor:
        observer.observe([(Role.INPUT, "x", x)])
        x.register_hook(lambda gradient: observer.observe([(Role.INPUT, "gradient", gradient)]))
        return x.square()

    torch.autograd.functional.jacobian(function, torch.randn(3), vectorize=True)
    assert observer.unobserved == {"Tensor": 1}
    assert len(observer.observations().address) == 1


def test_a_fake_tensor_has_no_address_and_is_no_riddle() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    observer = StorageObserver()
    with FakeTensorMode():
        observer.observe([(Role.INPUT, "x", torch.zeros(4))])
    assert len(observer.observations().address) == 0


def test_what_cannot_be_looked_at_is_counted_by_type_and_the_others_are_seen() -> None:
    observer, plain = StorageObserver(), torch.zeros(3)
    hostile = Hostile(plain, plain)
    opaque = torch.zeros(2, 2).to_mkldnn()
    observer.observe((Role.INPUT, "x", each) for each in (hostile, opaque, hostile, plain))
    assert observer.observations().address.tolist() == [plain.data_ptr()]
    assert dict(observer.unobserved) == {"Hostile": 2, "Tensor": 1}
