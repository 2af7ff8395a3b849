"""What was compiled comes back from the file as it was, and a damaged document is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tracer.capture.sources.compiled_code import (
    NOTHING_COMPILED,
    CompiledCode,
    CompiledGraph,
    CompiledNode,
)
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError
from tracer.exporters.recording_file.checked_columns import Columns
from tracer.exporters.recording_file.recording_columns import compiled_columns, compiled_from

LINE = SourceLine("/home/somebody/net.py", 7)
CODE = CompiledCode(
    (
        CompiledGraph(
            path="/tmp/ab/cab.py",
            text="def call(args):\n\treturn ()\n",
            compile_id="0/0",
            is_backward=True,
            num_outputs=-1,
            nodes=(
                CompiledNode("add", (LINE, SourceLine("x", 1)), 2**63, "blocks.0"),
                CompiledNode("mm", (), -1, "", True, False),
            ),
            buffers={"buf0": (1, 0)},
            outputs=("add", ""),
        ),
    ),
    ("skipping cudagraphs due to mutated inputs", ""),
    3 << 20,
)


def test_it_comes_back() -> None:
    assert compiled_from(Columns(compiled_columns(CODE))) == CODE


def test_nothing_compiled_takes_no_room() -> None:
    assert compiled_columns(NOTHING_COMPILED) == {}
    assert compiled_from(Columns({})) == NOTHING_COMPILED


DAMAGED: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("graphs", 0, "nodes"), [{}], ""),
    (("graphs", 0, "text"), 5, ""),
    (("graphs", 0, "num_outputs"), -1, ""),
    (("graphs", 0, "buffers"), [{"name": "buf0", "nodes": [2]}], ""),
    (("graphs", 0, "lines"), [], ""),
    *((("graphs", 0, "nodes", 0, "module_id"), number, "") for number in ("", "x", "1" * 30, "²")),
]


@pytest.mark.parametrize(("place", "value", "said"), DAMAGED)
def test_a_damaged_document_is_refused(place: tuple[str | int, ...], value: Any, said: str) -> None:
    document = part = json.loads(bytes(compiled_columns(CODE)["compiled"]))
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(RecordingError, match=said):
        compiled_from(Columns({"compiled": np.frombuffer(json.dumps(document).encode(), np.uint8)}))
