"""The one walk over nested values: arguments and results of a model, and batches.

torch's own pytree is not enough for it: a Mapping that is no dict, such as the BatchEncoding of transformers, and a
dataclass that nobody has registered are leaves to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Leaf = TypeVar("Leaf")


def leaves(value: object, kind: type[Leaf], name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield all of a kind in nested mappings, sequences and dataclasses, in order, each with its path: `batch.pair[0]`.

    What holds itself is walked once.
    """
    yield from _walk(value, kind, name, ())


def _walk(value: object, kind: type[Leaf], name: str, around: tuple[int, ...]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, kind):
        yield name, value
    elif id(value) not in around:
        for step, inner in _held_by(value):
            yield from _walk(inner, kind, name + step, (*around, id(value)))


def _held_by(value: Any) -> Iterator[tuple[str, object]]:
    """Return a container's values by key or index; nothing of anything else."""
    if isinstance(value, Mapping):
        yield from ((f".{key}", inner) for key, inner in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{field}", inner) for field, inner in zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in fields(value))
