"""What `help(tracer)`, `dir(tracer)` and tab completion show, and what showing it costs."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest

import tracer

ROOT = Path(tracer.__file__).parent.parent


def test_what_the_file_itself_imports_is_not_listed() -> None:
    public = {name for name in dir(tracer) if not name.startswith("_")}
    assert {name for name in public if not hasattr(getattr(tracer, name), "__path__")} <= {
        *tracer.__all__, *(path.stem for path in ROOT.glob("tracer/*.py")),
    }  # fmt: skip


@pytest.mark.parametrize("name", tracer.__all__)
def test_help_has_the_documentation_of_each(name: str) -> None:
    first = (getattr(tracer, name).__doc__ or "").strip().splitlines()[0]
    assert first
    assert first in pydoc.render_doc(tracer, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tracer.nothing  # noqa: B018


def test_help_begins_with_a_tour_of_twelve_names() -> None:
    tour = (tracer.__doc__ or "").partition("A tour of twelve names:")[2].partition("    with ")[0]
    names = re.findall(r"^    (.+?) {2,}\S", tour, re.MULTILINE)
    assert len(names) == 12 and set(tracer.__all__) <= set(names)
    for name in (name for line in names for name in line.split(", ") if name.startswith("integrations.")):
        assert (ROOT / "tracer" / Path(*name.split(".")[:2])).with_suffix(".py").is_file()
