"""Operators by name, their kernels by dispatch key, and their schemas: which arguments an operator may write to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch


def schema_name(operator: Any) -> str:
    """The name of an operator with its namespace, such as `aten::addmm`, without the overload."""
    return str(operator._schema.name)


def written_arguments(operator: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions, and names, of the arguments that an operator writes to."""
    arguments = operator._schema.arguments
    written = [
        n for n, argument in enumerate(arguments) if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(written), tuple(arguments[n].name for n in written)


def operator(name: str, overload: str = "default") -> Any:
    """An operator of torch's by name, such as `_flash_attention_forward`; None if this torch has none."""
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, overload, None)


def operator_by_full_name(name: str) -> Any:
    """An operator by the name that it is registered under, such as `aten::add.Tensor` or `torchvision::nms`."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def operators_with_kernel(dispatch_key: str) -> tuple[str, ...]:
    """Full names of the operators that have a kernel of their own for a key such as `CUDA`."""
    return tuple(torch._C._dispatch_get_registrations_for_dispatch_key(dispatch_key))


def runs_on_host(name: str) -> bool:
    """True if an operator, by its full name, can be called with tensors of the CPU."""
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))


def generator_argument(operator: Any) -> tuple[int, str] | None:
    """Position and name of the argument of an operator that is a generator; position -1 where it needs its name."""
    for n, argument in enumerate(operator._schema.arguments):
        if "Generator" in str(argument.type):
            return (-1 if argument.kwarg_only else n), argument.name
    return None


def tensor_arguments(operator: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments of an operator that are one tensor, and not optional."""
    arguments = operator._schema.arguments
    return tuple((n, argument.name) for n, argument in enumerate(arguments) if str(argument.type) == "Tensor")


def written_by_name_alone(operator: Any) -> bool:
    """True if each argument that an operator writes to is given as `out=` or the like, so that it is not read."""
    written = [argument for argument in operator._schema.arguments if argument.is_out]
    return bool(written) and len(written) == len(written_arguments(operator)[1])


def device_kernel(name: str, dispatch_key: str) -> Callable[..., Any]:
    """The function that an operator now calls for a dispatch key; it stays that one if replaced later."""
    kernel = torch.library.get_kernel(name, dispatch_key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))
    return partial(kernel.call_boxed, keys)


def kernel_library(namespace: str) -> torch.library.Library:
    """A library to register operators' kernels in; they are used until it is given to `remove_library`."""
    return torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]


def add_kernel(library: torch.library.Library, name: str, kernel: Callable[..., Any], dispatch_key: str) -> None:
    """Register a kernel in place of torch's own, by the operator's name without its namespace."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(name, kernel, dispatch_key)  # type: ignore[no-untyped-call]


def remove_library(library: torch.library.Library) -> None:
    """Have torch's own kernels again."""
    library._destroy()  # type: ignore[no-untyped-call]


class BelowOperators:
    """A context in which operators run as in a kernel: no autograd, no mixed precision, no events of the profiler."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        self._guards = (
            torch._C._AutoDispatchBelowAutograd(),
            below_autocast(),
        )
        for guard in self._guards:
            guard.__enter__()
        torch._C._autograd._enable_record_function(False)

    def __exit__(self, *error: object) -> None:
        torch._C._autograd._enable_record_function(True)
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def below_autocast() -> Any:
    """A context in which the CPU's mixed precision is passed by, as inside one of its kernels."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def watched(see: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]) -> Any:
    """A context in which a function is told of every operator of plain tensors that has run, below autograd.

    Of a tensor that is put together of others, as a sharded one, these are told.

    Args:
        see: Given an operator's name with its namespace, its arguments, and what it returned.
    """
    from torch._subclasses import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

    class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(kind, FakeTensor) for kind in types):  # with which sharding is worked out
                return func(*args, **(kwargs or {}))
            if not all(kind in plain for kind in types):
                return NotImplemented
            out = func(*args, **(kwargs or {}))
            see(schema_name(func), args, kwargs or {}, out)
            return out

    return Watched()  # type: ignore[no-untyped-call]


_WRITES_ONLY = ("zero_", "fill_", "normal_", "uniform_", "_foreach_zero_")


def read_tensors(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors whose values an operator reads, if it is no view; what is overwritten is not read."""
    short = name.partition("::")[2]
    if short in _WRITES_ONLY or short == "record_stream":
        return
    yield from tensors_of(args[1:] if short == "copy_" else args)
    yield from tensors_of([value for key, value in kwargs.items() if not key.startswith("out")])


def overwritten_tensors(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator writes without a look at their values."""
    short = name.partition("::")[2]
    if short in _WRITES_ONLY or short == "copy_":
        yield from tensors_of(args[:1])
    yield from tensors_of([value for key, value in kwargs.items() if key.startswith("out")])


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, and of lists among these."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


@cache
def may_be_view(name: str) -> bool:
    """True if an operator returns a view of its argument, or may: `aten::to` and `aten::reshape` copy at times."""
    returned = [each.alias_info for schema in _schemas(name) for each in schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


@cache
def is_by_elements(name: str) -> bool:
    """True if each element of an operator's result is made of one element of each tensor that it is given."""
    packet = getattr(torch.ops.aten, name.partition("::")[2], None)
    overloads = packet.overloads() if packet is not None else ()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in overloads)


# What a recorded argument was, as far as matching needs it. A scalar is its Python type.
TENSOR, NONE, TENSOR_LIST, MIXED_LIST = "tensor", "none", "tensor list", "mixed list"


@cache
def _schemas(name: str) -> tuple[Any, ...]:
    if "::" not in name:
        return ()
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:
        return ()


def _fits(kind: Any, schema_type: Any) -> bool:
    """True if a recorded argument can be of the schema's type.

    Source: `SchemaMatcher._types_match`.
    """
    c = torch._C
    if isinstance(schema_type, c.OptionalType):
        return kind == NONE or _fits(kind, schema_type.getElementType())
    if isinstance(schema_type, c.AnyType):
        return True
    if schema_type.isSubtypeOf(c.ListType.ofTensors()):
        return bool(kind == TENSOR_LIST)
    if isinstance(schema_type, c.TensorType):
        return bool(kind == TENSOR)
    scalars: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (c.NoneType, (NONE,)),
        (c.BoolType, (bool,)),
        (c.IntType, (int, bool)),
        (c.FloatType, (float,)),
        (c.ComplexType, (complex,)),
        (c.NumberType, (bool, int, float, complex)),
    )
    for jit_type, kinds in scalars:
        if isinstance(schema_type, jit_type):
            return kind in kinds
    # The profiler records no other types, so such an argument has to be None.
    return bool(kind == NONE)


def match_schema(name: str, kinds: tuple[Any, ...]) -> tuple[bool, tuple[bool | None, ...]]:
    """Return True if an operator of this name takes these arguments, and the arguments that it may write to.

    Args:
        name: The recorded name; overloads are not recorded.
        kinds: One per argument: TENSOR, NONE, TENSOR_LIST, MIXED_LIST, or the type of a scalar.

    Returns:
        True if any overload matches, and per argument True if a matching overload writes to it, False if none does,
        None for all when nothing matches.

    Source:
        `SchemaMatcher.inputs_are_mutable` in `torch/profiler/_memory_profiler.py`, unchanged from torch 2.11 to 2.15.
    """
    mutable: list[bool] | None = None
    for schema in _schemas(name):
        arguments = schema.arguments
        if len(arguments) != len(kinds):
            continue
        if all(_fits(kind, argument.type) for kind, argument in zip(kinds, arguments, strict=True)):
            mutable = mutable or [False] * len(kinds)
            for index, argument in enumerate(arguments):
                mutable[index] |= bool(getattr(argument.alias_info, "is_write", False))
    return mutable is not None, tuple(mutable) if mutable is not None else (None,) * len(kinds)
