"""The registry of operators' schemas: which arguments an operator may write to.

Source: rules as in `torch/profiler/_memory_profiler.py`, unchanged from torch 2.11 to 2.15.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

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
    """Whether a recorded argument can be what the schema asks for.

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
    """Whether an operator of this name takes these arguments, and which of them it may write to.

    Args:
        name: The recorded name; overloads are not recorded.
        kinds: One per argument: TENSOR, NONE, TENSOR_LIST, MIXED_LIST, or the type of a scalar.

    Returns:
        Whether any overload matches, and per argument True if a matching overload writes to it, False if none does,
        None for all when nothing matches.

    Source:
        `SchemaMatcher.inputs_are_mutable`.
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
