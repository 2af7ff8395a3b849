"""Changes of an unchanged script, one file for each kind: its hooks."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def all_kinds() -> tuple[ModuleType, ...]:
    """Return the modules of this folder, by name."""
    return tuple(import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
