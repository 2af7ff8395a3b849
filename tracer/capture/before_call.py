"""Something that happens once, right before a library calls one of its own functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def before_next_call(owner: Any, names: tuple[str, ...], act: Callable[[], object]) -> Callable[[], None]:
    """Have something called right before the next call of one of a module's functions.

    Args:
        owner: The module; callers have to look the functions up in it.

    Returns:
        The function that ends that; more than once does no harm.
    """
    own = {name: getattr(owner, name) for name in names if hasattr(owner, name)}

    def end() -> None:
        for name, function in own.items():
            setattr(owner, name, function)

    def called(name: str, *arguments: Any, **options: Any) -> Any:
        end()
        act()
        return own[name](*arguments, **options)

    for name in own:
        setattr(owner, name, partial(called, name))
    return end
