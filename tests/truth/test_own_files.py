"""No file of this program is a line of the user's: in rows, remedies and snapshots of programs that are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.truth.isolate import value_in_fresh_process
from tests.truth.running import run_watched
from tracer.answers.allocator.explained import with_allocator
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.blocks.from_snapshot.sites import Sites
from tracer.capture import recording as wrapper
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.own_files import frames_of_program, is_own_file
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot, snapshot_in_memory

BASE = 0x7F0000000000
MIB = 1 << 20


def files_in(value: Any) -> set[str]:
    """Every text under a key `file`, and the file of every frame `function (file:line)` of a stack."""
    if isinstance(value, dict):
        own = {value["file"]} if isinstance(value.get("file"), str) else set()
        return own.union(*map(files_in, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(files_in, value))
    if isinstance(value, str) and value.endswith(")") and " (" in value:
        return {value.rpartition(" (")[2].removesuffix(")").rpartition(":")[0]}
    return set()


def explained(snapshot: Snapshot) -> dict[str, Any]:
    return snapshot_json(with_allocator(explain_replayed(replay_snapshot(snapshot))), file="")


def _recorded_files(name: str, folder: str) -> list[str]:
    run_watched(name, Path(folder))
    peak = json.loads((Path(folder) / "peak.json").read_text("utf-8"))
    snapshot = load_snapshot(Path(folder) / "memory_snapshot.pkl")
    return sorted(files_in(peak) | files_in(explained(snapshot)))


@pytest.mark.parametrize("name", ["optimizer_inside_backward"])
def test_recorded_programs_name_none(name: str, tmp_path: Path) -> None:
    files = value_in_fresh_process(_recorded_files, name, str(tmp_path))
    assert files and not [file for file in files if is_own_file(file)]


def test_wrappers_of_ours_in_a_snapshots_stacks_are_passed_over() -> None:
    """`torch.load` as a job of ranks follows it: the line is that of the program, or torch's where none is."""

    def frame(name: str, file: str, line: int) -> dict[str, Any]:
        return {"name": name, "filename": file, "line": line}

    inner = frame("load", "/opt/lib/python3.11/site-packages/torch/serialization.py", 1500)
    ours = frame("load", wrapper.__file__, 37)
    theirs = frame("main", "/home/me/train.py", 5)
    outer = frame("run_code", str(Path(wrapper.__file__).parents[1] / "commands" / "script.py"), 156)
    stacks = [[inner, ours, theirs, outer], [ours, outer], [inner, ours]]
    trace = [
        {"action": "alloc", "addr": BASE + at * MIB, "size": MIB, "stream": 0, "time_us": at, "frames": frames}
        for at, frames in enumerate(stacks)
    ]
    blocks = [
        {"address": BASE + at * MIB, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": frames}
        for at, frames in enumerate(stacks)
    ]
    segment = {"device": 0, "address": BASE, "total_size": 3 * MIB, "stream": 0, "segment_type": "large"}
    snapshot = snapshot_in_memory({"segments": [{**segment, "blocks": blocks}], "device_traces": [trace]})
    sites = Sites(snapshot.stacks)
    named = {sites.site(stack).file for stack in range(len(snapshot.stacks))}
    assert named == {None, theirs["filename"], inner["filename"]}
    assert not [file for file in files_in(explained(snapshot)) if is_own_file(file)]


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        (["torch/nn/modules/linear.py", "train.py"], [0, 1]),
        (["train.py", "<frozen runpy>", "tracer/commands/script.py", "site-packages/typer/main.py"], [0]),
        (["train.py", "tracer/capture/recording.py", "train.py", "runpy.py", "tracer/commands/script.py"], [0, 2]),
        (["model.py", "tracer/sessions/workload_run.py", "tracer/commands/profile.py", "main.py"], [0]),
        (["train.py", "<frozen runpy>"], [0, 1]),
        (["tracer/commands/script.py", "main.py"], []),
        ([], []),
    ],
)
def test_what_starts_a_program_is_no_frame_of_its(files: list[str], rows: list[int]) -> None:
    assert frames_of_program(files) == rows
