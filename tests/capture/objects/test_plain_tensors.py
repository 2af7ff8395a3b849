"""Any tensor is taken apart into those with an address; what has none is counted, and nobody's code fails of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_columns import plain_tensors
from tracer.capture.objects.storage_observer import StorageObserver


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
