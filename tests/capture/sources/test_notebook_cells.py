"""Cells go by the number that IPython itself gives them, and nothing else is a cell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tracer.capture.sources.notebook_cells import cell_name, file_of_cell, is_cell

FIRST, OTHER = "/tmp/ipykernel_3191/2037443439.py", "/tmp/ipykernel_3191/1.py"


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {FIRST: ("Cell", "In[3]"), "<ipython-input-7-abc>": ("Cell", "In[7]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=known.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("ipython")
def test_a_cell_has_the_number_of_its_input() -> None:
    assert [cell_name(file) for file in (FIRST, "<ipython-input-7-abc>")] == ["cell 3", "cell 7"]
    assert file_of_cell("cell 3") == FIRST
    assert is_cell("cell 3") and not is_cell(FIRST)


@pytest.mark.usefixtures("ipython")
@pytest.mark.parametrize("file", [OTHER, "/home/me/train.py", "<string>", ""])
def test_what_ipython_does_not_know_is_no_cell(file: str) -> None:
    assert cell_name(file) is None
    assert file_of_cell(file) == file


def test_without_ipython_nothing_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cell_name(FIRST) is None
