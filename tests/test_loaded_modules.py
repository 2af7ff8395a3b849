"""Changes of modules as they are loaded."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tracer.loaded_modules import when_loaded


def test_a_module_is_changed_when_it_is_loaded_and_at_once_if_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_library.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "own_library", None)
    del sys.modules["own_library"]  # is taken out again
    found: list[tuple[str, int]] = []
    finders = [*sys.meta_path]
    ends = [
        when_loaded("own_library", lambda module: found.append(("a", module.value))),
        when_loaded("own_library", lambda module: found.append(("b", module.value))),
    ]
    assert find_spec("own_library") is not None and not found  # somebody asks whether it is installed
    import_module("own_library")
    assert found == [("a", 1), ("b", 1)]
    ends.append(when_loaded("own_library", lambda module: found.append(("c", module.value))))
    assert found[2:] == [("c", 1)]
    for end in [*ends, *ends]:
        end()
    assert sys.meta_path == finders
