"""The files of a run: which are written, whole or not at all, and that one that fails takes no other along."""

from __future__ import annotations

import dataclasses
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.pieces import Pieces, raising
from tracer.answers import recording_findings as findings_module
from tracer.answers import run_results as results_module
from tracer.answers.operators import run_times as run_times_module
from tracer.answers.run_results import RunResults
from tracer.capture.run_facts import RunOrigin
from tracer.errors import OutputError
from tracer.exporters.page.timeline_page import timeline_page
from tracer.sessions import output_files as outputs
from tracer.sessions.output_files import OUTPUTS, Written, write_outputs
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile

NAMES = [output.name for output in OUTPUTS]
FILES = [output.file_name for output in OUTPUTS]

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")


@cache
def results() -> RunResults:
    return run_profile(Pieces(), schedule=Schedule(0, 1, 1, 1), keep_recording=True)


def write(folder: Path, run: RunResults | None = None, **options: Any) -> dict[str, Written]:
    return {written.output.name: written for written in write_outputs(run or results(), folder, **options)}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_contracts_files_are_in_the_table() -> None:
    contract = {"max_mem.txt", "memory_timeline.html", "memory_snapshot.pkl", "cuda_timing.txt", "peak.json"}
    assert set(FILES) >= contract
    assert len(set(NAMES)) == len(set(FILES)) == len(OUTPUTS)
    assert all(output.file.read_with for output in OUTPUTS)


def test_all_files_are_written_into_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = write(folder)
    assert list(written) == NAMES
    assert [one.error for one in written.values()] == [None] * len(NAMES)
    assert names_in(folder) == sorted(FILES)
    assert [one.path for one in written.values()] == [folder / name for name in FILES]
    assert all(one.path.stat().st_size > 0 for one in written.values())


@pytest.mark.parametrize("output", OUTPUTS, ids=NAMES)
def test_one_that_fails_leaves_nothing_and_the_others_are_written(output: outputs.Output, tmp_path: Path) -> None:
    (tmp_path / output.file_name).mkdir()
    written = write(tmp_path)
    assert isinstance(written[output.name].error, OutputError)
    assert [name for name, one in written.items() if one.error is not None] == [output.name]
    assert names_in(tmp_path) == sorted(FILES)
    assert not list((tmp_path / output.file_name).iterdir())


@pytest.mark.parametrize("output", OUTPUTS, ids=NAMES)
def test_a_file_appears_only_when_it_is_whole(
    output: outputs.Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / output.file_name
    path.write_text("old")

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    written = write(tmp_path, leave_out=set(NAMES) - {output.name})
    assert "No space left on device" in str(written[output.name].error)
    assert names_in(tmp_path) == [output.file_name]
    assert path.read_text() == "old"


def test_a_fault_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a person can act on is a line; anything else keeps its traceback."""

    def broken(*_: Any) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(outputs, "OUTPUTS", (dataclasses.replace(OUTPUTS[0], write=broken),))
    with pytest.raises(KeyError):
        write(tmp_path)


def test_each_is_told_as_soon_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / FILES[1]).mkdir()
    told: list[Written] = []

    def tell(written: Written) -> None:
        assert written.path.is_file() == (written.error is None)
        assert len(names_in(tmp_path)) == max(2, len(told) + 1)
        told.append(written)

    assert write_outputs(results(), tmp_path, tell=tell) == tuple(told)
    assert [one.output.name for one in told] == NAMES


@pytest.mark.parametrize(
    ("lacks", "written"),
    [
        ({"timings": None}, set(FILES) - {"cuda_timing.txt"}),
        ({"keep_recording": False}, set(FILES) - {"recording.npz"}),
        ({"findings": None}, {"cuda_timing.txt", "recording.npz"}),
    ],
)
def test_what_a_run_lacks_has_no_file(lacks: dict[str, Any], written: set[str], tmp_path: Path) -> None:
    write(tmp_path, dataclasses.replace(results(), **lacks))
    assert names_in(tmp_path) == sorted(written)


def test_files_of_an_earlier_run_are_told_apart_and_stay(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "notes.txt").write_text("the user's own")
    failed = run_profile(Pieces(before=raising(KeyError(), piece="forward", step=0)), schedule=Schedule(0, 1, 1, 1))
    for run, unwanted, left in (
        (results(), [], []),
        (results(), ["peak-json", "max-mem"], ["max_mem.txt", "peak.json"]),
        (dataclasses.replace(results(), timings=None), [], ["cuda_timing.txt"]),
        (failed, [], FILES),
    ):
        written = write(tmp_path, run, leave_out=unwanted).values()
        found = outputs.left_from_earlier(tmp_path, written)
        assert found.startswith(f"{', '.join(left)} in {tmp_path} ") if left else not found
        assert names_in(tmp_path) == sorted([*FILES, "notes.txt"])


def test_the_pages_bands_are_the_steps_and_their_phases() -> None:
    findings = results().findings
    assert findings is not None
    page = timeline_page(findings, run={})
    assert [(band.kind, band.name) for band in page.bands] == [
        ("step", "ProfilerStep#1"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("optimizer", "optimizer"),
    ]


def test_what_several_files_are_made_of_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results().findings
    assert found is not None
    run = dataclasses.replace(results(), findings=dataclasses.replace(found))
    calls: list[str] = []
    counted_names = ((findings_module, "blocks_of_recording"), (run_times_module, "run_times"))
    for module, name in (*counted_names, (results_module, "answer_of_run")):
        work = getattr(module, name)

        def counted(*args: Any, name: str = name, work: Any = work, **kwargs: Any) -> Any:
            calls.append(name)
            return work(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)
    written = list(outputs.write_outputs(run, tmp_path))
    assert not [each.error for each in written if each.error is not None]
    assert sorted(calls) == ["answer_of_run", "run_times"], "blocks are classified with the findings, once for all"


def test_a_run_that_computed_nothing_has_no_times_and_says_so(tmp_path: Path) -> None:
    """The same results, as if the device had computed nothing: with times in them, which nobody may see."""
    nothing = dataclasses.replace(results(), origin=RunOrigin.here(caveat="Nothing was computed."), timings=None)
    written = write_outputs(dataclasses.replace(nothing), tmp_path)
    names = {each.path.name for each in written if each.error is None}
    assert names.isdisjoint({"run_time_report.sqlite", "cuda_timing.txt"})
    for name in ("max_mem.txt", "memory_timeline.html"):
        assert b"Nothing was computed." in (tmp_path / name).read_bytes(), name
    document = json.loads((tmp_path / "peak.json").read_text("utf-8"))
    assert document["computed"] is False and document["time_us"] is None
    snapshot = pickle.loads((tmp_path / "memory_snapshot.pkl").read_bytes())
    assert "time_us" not in str(snapshot)
