"""The file of facts beside a snapshot: read back as it was, refused in a sentence where it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blocks.from_snapshot.recorded_program import objects_of
from tracer.capture.objects.at_failure import Holder, Operand
from tracer.capture.objects.later_uses import LargeBlocks, LaterUses, Making, NextUse, SecondRun, Sized
from tracer.errors import RecordingError
from tracer.exporters.facts_file import FailureFactsFile, facts_path, read_facts, write_facts

USES = LaterUses(
    (2, 1),
    (8, 9),
    (0, 1),
    (True, False),
    (0, 3),
    (8, 1),
    (0, 1),
    (NextUse("a.py", 1, "aten::mm", True, False, False, True, 0),),
    (Making("aten::mm", (Sized((2, 1), "int8", 2),), Sized((2, 2), "int8", 4)),),
    1,
    is_to_the_end=True,
    request=3,
    large=LargeBlocks((1,), (0,), (8,), (0,), (8,)),
)
FACTS = FailureFactsFile(
    1,
    1_700_000_000_000_000,
    1 << 30,
    replace(
        objects_of(in_graphs=frozenset({4096, 8192})),
        holders=(Holder("history[...]", "global variable of train.py", (4096,)),),
        operands=(Operand("self.weight", "train.py", 3, 64, (4, 4), "float32"),),
        second_run=SecondRun(("It needs more.",), 5, USES),
    ),
)


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = facts_path(tmp_path / "oom_rank0.pickle")
    assert path.name == "oom_rank0.facts.json"
    write_facts(FACTS, path)
    assert read_facts(path) == FACTS


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"format": "else"}, "is not a file of facts of this program"),
        ({"version": 9}, "is of format version 9"),
        ({"device": -1}, "device is not a whole number"),
        ({"objects": None}, "objects is not an object"),
    ],
)
def test_a_damaged_file_is_one_sentence(damage: dict[str, object], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    write_facts(FACTS, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(RecordingError, match=sentence):
        read_facts(path)


def test_columns_of_different_lengths_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    write_facts(FACTS, path)
    values = json.loads(path.read_text())
    values["objects"]["second_run"]["uses"]["large"]["made"] = []
    path.write_text(json.dumps(values))
    with pytest.raises(RecordingError, match=r"large\.columns differ in length"):
        read_facts(path)


def test_a_file_that_is_no_json_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "oom.facts.json"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(RecordingError, match="is not JSON that can be read"):
        read_facts(path)
