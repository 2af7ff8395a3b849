"""Fused attention in place of softmax(Q K^T) V, whose scores of every query with every key are not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.workload import Workload

_WORTHWHILE = 0.02
_SOFTMAX = ("aten::_softmax", "aten::softmax", "aten::_softmax_backward_data")


def candidates(situation: Situation) -> Iterator[Change]:
    """One, where softmaxes that are not a loss's hold memory at the peak."""
    modules: dict[str, int] = {}
    for (operator, module), size in situation.bytes_by_place.items():
        if operator in _SOFTMAX and module:
            modules[module] = modules.get(module, 0) + size
    if sum(modules.values()) < _WORTHWHILE * situation.peak_bytes:
        return
    if hasattr(situation.model, "set_attn_implementation"):  # Hugging Face's, which was told to work naively
        yield _change(('model.set_attn_implementation("sdpa")',))
        return
    names = sorted(modules)
    where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    lines = (
        f"# in {where}, in place of softmax(query @ key.transpose(-2, -1) / d ** 0.5) @ value",
        "# with a mask: attn_mask=mask, or is_causal=True",
        "output = torch.nn.functional.scaled_dot_product_attention(query, key, value)",
    )
    yield _change(lines, partial(_fused, _kinds(situation, names)))


def _change(lines: tuple[str, ...], apply: Callable[[Workload], Workload] | None = None) -> Change:
    return Change(
        name="scaled_dot_product_attention instead of a softmax between two products",
        family="attention",
        group=Group.MEMORY,
        keeps=Keeps.ROUNDING,
        lines=lines,
        apply=apply,
        needs="Nothing reads the attention's weights.",
    )


def _kinds(situation: Situation, names: list[str]) -> tuple[str, ...]:
    """The modules in whose own forward the products are: around a module that is a softmax, the one that calls it."""
    owners: dict[str, None] = {}
    for name in names:
        module = situation.model.get_submodule(name)
        owner = name.rpartition(".")[0] if isinstance(module, torch.nn.Softmax | torch.nn.Dropout) else name
        owners[owner] = None
    return tuple(owners)


def _fused(names: tuple[str, ...], workload: Workload) -> Workload:
    for name in names:
        module = workload.model.get_submodule(name)
        module.forward = partial(_without_scores, module.forward)
    return workload


def _without_scores(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _FindsAttention():
        return forward(*args, **kwargs)


class _FindsAttention(TorchFunctionMode):
    """While entered, a product of two batches of matrices is made only when its result is used otherwise."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func.__name__ in _PRODUCTS
            and len(args) == 2
            and not kwargs
            and all(isinstance(arg, Tensor) for arg in args)
        ):
            first, second = args
            if min(first.ndim, second.ndim) > 2 and first.shape[-1] == second.shape[-2]:
                return _Scores(first, second)
        return func(*args, **kwargs)


_PRODUCTS = ("matmul", "__matmul__", "bmm")
_SKIPPED = ("to", "float", "type_as", "contiguous", "type")


@dataclass(frozen=True, eq=False)
class _Scores:
    """Products of queries and keys that nobody has computed, and what was to be done with them."""

    query: Tensor  # [..., S, D]
    key: Tensor  # [..., D, T]
    scale: float = 1.0
    mask: Tensor | None = None  # Added to them, or True where they count
    is_softmax: bool = False
    dropout: float = 0.0
    done: tuple[tuple[Any, tuple[Any, ...], Mapping[str, Any]], ...] = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], _Scores):
            after = args[0].after(func, args[1:], kwargs)
            if after is not None:
                return after
        values = [arg.computed() if isinstance(arg, _Scores) else arg for arg in args]
        return func(*values, **kwargs)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The pattern after one more operator; None where the operator does not lead to attention.

        Args:
            args: Its arguments without the scores.
        """
        name = func.__name__.strip("_")
        noted = replace(self, done=(*self.done, (func, args, kwargs)))
        if name in _SKIPPED:
            return noted
        if name == "softmax" and not self.is_softmax:
            return replace(noted, is_softmax=True)
        if name == "dropout" and self.is_softmax:
            given = dict(zip(("p", "training"), args, strict=False)) | dict(kwargs)
            return replace(noted, dropout=given.get("p", 0.5) if given.get("training", True) else 0.0)
        if self.is_softmax:
            is_product = name in ("matmul", "bmm") and isinstance(args[0], Tensor)
            return self.times(args[0]) if is_product else None
        if name in ("mul", "div", "truediv") and isinstance(args[0], int | float) and self.mask is None:
            return replace(noted, scale=self.scale * args[0] if name == "mul" else self.scale / args[0])
        if name == "add" and isinstance(args[0], Tensor) and self.mask is None:
            return replace(noted, mask=args[0])
        if name == "masked_fill" and self.mask is None and args[1] < -1e4:
            return replace(noted, mask=~args[0].bool())
        return None

    def times(self, value: Tensor) -> Tensor:
        """Fused attention with these scores and the given values."""
        key = self.key.transpose(-2, -1)
        mask = self.mask
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(self.query.dtype)
        return F.scaled_dot_product_attention(
            self.query, key, value, attn_mask=mask, dropout_p=self.dropout, scale=self.scale
        )

    def computed(self) -> Tensor:
        """What the program has asked for, step by step."""
        result = torch.matmul(self.query, self.key, out=None)  # the mode leaves products with keywords alone
        for func, args, kwargs in self.done:
            result = func(result, *args, **kwargs)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(Tensor, name, None)
        if callable(method) and (name in _SKIPPED or name in _METHODS):
            return partial(self._call, method)
        return getattr(self.computed(), name)

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return _Scores.__torch_function__(method, (), (self, *args), kwargs)

    def __mul__(self, other: Any) -> Any:
        return self._call(torch.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._call(torch.div, other)

    def __add__(self, other: Any) -> Any:
        return self._call(torch.add, other)

    __radd__ = __add__

    def __matmul__(self, other: Any) -> Any:
        return self._call(torch.matmul, other)

    def __getitem__(self, index: Any) -> Any:
        return self.computed()[index]

    def __sub__(self, other: Any) -> Any:
        return self.computed() - other


_METHODS = ("softmax", "masked_fill", "masked_fill_", "mul", "div", "add", "matmul", "bmm")
