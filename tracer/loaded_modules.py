"""Modules that Python loads: who is told of them, and changes of other people's modules, or before their next call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import dropwhile
from types import ModuleType, SimpleNamespace
from typing import Any


def on_import(find_spec: Callable[..., ModuleSpec | None]) -> Callable[[], None]:
    """Have a function asked for each module that is imported, before Python's own finders.

    Args:
        find_spec: Called as a finder's `find_spec`; where it returns None, the other finders are asked.

    Returns:
        A function that ends it; more than once does no harm.
    """
    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        with suppress(ValueError):  # a script may set the list anew
            sys.meta_path.remove(finder)

    return end


def when_loaded(name: str, change: Callable[[Any], None]) -> Callable[[], None]:
    """Change a module as soon as it is loaded, or now if it is loaded already.

    Returns:
        A function that ends the waiting; more than once does no harm.
    """
    if (loaded := sys.modules.get(name)) is not None:
        change(loaded)
        return lambda: None

    @contextmanager
    def changed() -> Iterator[None]:
        yield
        change(sys.modules[name])

    return around_load(name, changed)


def around_load(name: str, around: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
    """Have a module executed within a context when it is loaded.

    Returns:
        A function that ends the waiting; more than once does no harm.
    """

    def find_spec(asked: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if asked != name:
            return None
        _, *others = dropwhile(lambda finder: getattr(finder, "find_spec", None) is not find_spec, sys.meta_path)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _surround(spec.loader, around)
        return spec

    return on_import(find_spec)


def _surround(loader: Any, around: Callable[[], AbstractContextManager[None]]) -> None:
    """Have a loader execute its module within a context."""
    execute = loader.exec_module

    def executed(module: ModuleType) -> None:
        with around():
            execute(module)

    loader.exec_module = executed


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
