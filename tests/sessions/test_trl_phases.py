"""Parts of a step that trl times: each is a region, with a stand-in for trl's module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracer.capture.torch_private.torch_profiler import on_regions
from tracer.sessions.phase_reports import follow_trl

MODULE = "trl.extras.profiling"
WITH_CONTEXT = """
class ProfilingContext:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if self.name == "fails":
            raise OSError("the metrics could not be sent")
        return kind is ValueError
"""
EARLIER = "def profiling_context(trainer, name): ..."


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def loaded(source: str) -> Any:
        module = tmp_path / "trl" / "extras" / "profiling.py"
        module.parent.mkdir(parents=True)
        module.write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            monkeypatch.delitem(sys.modules, name)
        for name in ("trl", "trl.extras", MODULE):  # is taken out again
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]
        return importlib.import_module(MODULE)

    return loaded


@pytest.fixture
def regions() -> Iterator[list[str]]:
    seen: list[str] = []
    stop = on_regions(
        lambda region, frame: seen.append(f"({region.name}"), lambda region: seen.append(f"{region.name})")
    )
    yield seen
    stop()


def test_each_part_of_a_step_that_trl_times_is_a_region(load: Callable[[str], Any], regions: list[str]) -> None:
    finders = [*sys.meta_path]
    end = follow_trl()
    context = load(WITH_CONTEXT).ProfilingContext
    end()
    assert sys.meta_path == finders
    with context("generate") as entered, context("inside"):
        assert entered.name == "generate"
    with context("swallows"):
        int("no number")
    with pytest.raises(OSError, match="metrics"), context("fails"):
        pass
    names = [
        *("(trl: generate", "(trl: inside", "trl: inside)", "trl: generate)"),
        *("(trl: swallows", "trl: swallows)", "(trl: fails", "trl: fails)"),
    ]
    assert regions == names


def test_earlier_versions_of_trl_are_loaded_as_they_are(load: Callable[[str], Any]) -> None:
    end = follow_trl()
    assert load(EARLIER).profiling_context
    end()
