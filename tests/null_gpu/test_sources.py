"""Files of the null GPU call each other one way: what two of them need lies in a third one below."""

from __future__ import annotations

import re

from tests.test_architecture import find_cycle
from tracer.null_gpu.build import SOURCES

_COMMENTS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
_DECLARED = re.compile(r"^(?:static inline )?[a-z][\w ]*?[ *](\w+)\([^;{]*\)[^;{]*;", re.MULTILINE)


def test_no_file_of_c_is_called_by_one_that_it_calls() -> None:
    texts = {path.name: _COMMENTS.sub("", path.read_text("utf-8")) for path in SOURCES.glob("*.c")}
    shared = {
        name for path in SOURCES.glob("*.h") for name in _DECLARED.findall(_COMMENTS.sub("", path.read_text("utf-8")))
    }
    home = {
        name: file
        for name in shared
        for file, text in texts.items()
        if re.search(rf"^\w[^;=]*?\b{name}\([^;]*?\) {{", text, re.M)
    }
    assert len(home) > 50 and home["node_hold"] == "node.c"
    calls = {
        file: {home[name] for name in re.findall(r"\b(\w+)\(", text) if name in home} - {file}
        for file, text in texts.items()
    }
    assert find_cycle(calls) is None
