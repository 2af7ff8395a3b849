"""The modules of a script that are named like modules which this program has loaded: each side gets its own.

A script's `import tracer` finds the `tracer.py` beside it, as under Python alone, though `sys.modules` has ours under
that name. While the script runs, names that clash are the script's there; what this program or a library imports under
them comes from a table of its own.

Source: Python's reference, "the import statement". `importlib.import_module` and pickle see the script's `sys.modules`.
"""

from __future__ import annotations

import builtins
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__tracebackhide__ = True  # a line of this file explains nothing about the script

_PACKAGE = str(Path(__file__).resolve().parents[1])


@contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """While active, imports of a script find the modules in its folder, whatever is loaded under their names."""
    names = _clashing(folder)
    if not names:
        yield
        return
    apart = _Apart(names)
    try:
        yield
    finally:
        apart.end()


def _clashing(folder: Path) -> frozenset[str]:
    entries = [entry for entry in folder.iterdir() if entry.suffix in ("", ".py")] if folder.is_dir() else []
    names = {entry.stem for entry in entries} & set(sys.modules) - {"__main__"}
    return frozenset(name for name in names if _is_another(name, folder))


def _is_another(name: str, folder: Path) -> bool:
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return False  # Python never looks for these in a folder
    spec = PathFinder.find_spec(name, [str(folder)])
    loaded = getattr(sys.modules[name], "__file__", None)
    return (
        spec is not None
        and spec.origin is not None
        and (loaded is None or Path(spec.origin).resolve() != Path(loaded).resolve())
    )


class _Apart:
    """Two sets of modules of the same names: the script's in `sys.modules`, the others in a table."""

    def __init__(self, roots: frozenset[str]) -> None:
        self._roots, self._lock, self._is_swapped = roots, threading.RLock(), False
        paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
        self._libraries = tuple(f"{path}/" for path in {_PACKAGE, *paths})
        self._others = self._take()
        self._import = builtins.__import__
        builtins.__import__ = self._dispatch

    def end(self) -> None:
        """Put the others back; the script's modules are forgotten."""
        builtins.__import__ = self._import
        with self._lock:
            self._take()
            sys.modules.update(self._others)

    def _take(self) -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in self._roots]
        return {name: sys.modules.pop(name) for name in names}

    def _dispatch(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        importer = globals or {}
        root = name if level == 0 else str(importer.get("__package__") or "")
        if root.partition(".")[0] not in self._roots:
            return self._import(name, globals, locals, fromlist or (), level)
        with self._lock:
            if self._is_swapped or not str(importer.get("__file__")).startswith(self._libraries):
                return self._import(name, globals, locals, fromlist or (), level)
            self._is_swapped = True
            scripts = self._take()
            sys.modules.update(self._others)
            try:
                return self._import(name, globals, locals, fromlist or (), level)
            finally:
                self._others = self._take()
                sys.modules.update(scripts)
                self._is_swapped = False
