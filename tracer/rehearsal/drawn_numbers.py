"""A number that a program draws between bounds and reads: a rehearsal, which draws none, takes the largest of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Drawn = Callable[[Sequence[Any], Mapping[str, Any]], float | int | None]


def _uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    low, high = (*args[1:3], *(0.0, 1.0)[len(args) - 1 :])[:2]
    return _below(float(kwargs.get("from", low)), float(kwargs.get("to", high)))


def _below(low: float, high: float) -> float:
    """The largest number of 32 bits below one of two bounds."""
    return max(low, high - (high - low) * 2.0**-24)


def _rand(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    return _below(0.0, 1.0)


def _randint(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    bounds = [arg for arg in args if isinstance(arg, int)]
    return int(kwargs.get("high", bounds[-1] if bounds else 1)) - 1


def _random(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Without bounds it is any number of the type."""
    bounds = [arg for arg in args[1:] if isinstance(arg, int)]
    high = kwargs.get("to", bounds[-1] if bounds else None)
    return None if high is None else int(high) - 1


DRAWN: Mapping[str, _Drawn] = {
    "aten::uniform_": _uniform,
    "aten::rand": _rand,
    "aten::randint": _randint,
    "aten::random_": _random,
}
"""By operator, from its arguments to the largest number that it draws."""
