"""`snapshot` with a whole job: folders, several files, patterns, and what is broken."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_snapshot import NUM_LAYERS, Variant, make_snapshot
from tests.commands.dying_reader import dying_reader
from tests.commands.test_snapshots import run
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import block, entry, segment, snapshot, write
from tracer.errors import TracerError
from tracer.sessions.jobs import read_recordings as reading
from tracer.sessions.jobs.read_recordings import (
    num_processes_for,
    read_job,
    read_rank,
    recordings,
)
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.replay import Replay
from tracer.units import MIB

BASE = 0x7F0000000000


class _Here(Executor):
    """Reads in this process, in place of a pool of processes that each load the program."""

    def __init__(self, num_processes: int, **_: object) -> None:
        assert num_processes > 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[override]
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is about the answers: that processes give them is the claim of `test_a_folder_of_ranks`."""
    monkeypatch.setattr(reading, "ProcessPoolExecutor", _Here)


def job(folder: Path) -> Path:
    """Five ranks with 4 MiB each, one with 9, one that is broken; rank 6 has left nothing."""
    for rank in (0, 1, 2, 3, 4, 5, 7):
        size = 9 * MIB if rank == 3 else 4 * MIB
        trace = [entry("alloc", BASE, size)]
        values = snapshot(trace, [segment(BASE, 16 * MIB, [block(BASE, size)])])
        (folder / f"rank{rank}").mkdir(parents=True)
        path = write(folder / f"rank{rank}" / "memory_snapshot.pkl", values)
        if rank == 5:
            path.write_bytes(b"\x80\x04broken")
    (folder / "ranks.txt").write_text("of the run itself")
    return folder


@pytest.mark.slow  # as that of planted ranks, read by processes
def test_a_folder_of_ranks(tmp_path: Path) -> None:
    status, out, _ = run("snapshot", job(tmp_path / "job"), "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["worst_rank"], found["typical_rank"], found["missing"]) == ("rank 3", "rank 0", [6])
    assert [(one["rank"], "memory_snapshot.pkl" in one["problem"]) for one in found["unreadable"]] == [(5, True)]
    assert [(len(group["files"]), group["is_odd"]) for group in found["groups"]] == [(5, False), (1, True)]


def test_a_job_of_our_own_is_its_ranks_and_not_their_other_files(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    for name in ("peak.json", "trace.json.gz"):
        (folder / "rank0" / name).write_text("{}")
    (folder / "rank1" / "rank.json").write_text("{}")
    (folder / "rank6").mkdir()
    (folder / "rank6" / "rank.json").write_text("{}")
    (folder / "ranks.json").write_text("{}")
    named = [path.relative_to(folder).as_posix() for path in recordings([folder])]
    assert named == [f"rank{rank}/memory_snapshot.pkl" for rank in (0, 1, 2, 3, 4, 5, 7)]


@pytest.mark.usefixtures("read_here")
def test_the_same_on_a_screen_by_names_and_by_a_pattern(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    status, out, _ = run("snapshot", str(folder / "rank[0-3]" / "*.pkl"))
    assert status == 0
    assert "Worst of 4 ranks: rank 3, with a peak of " in out
    files = [folder / f"rank{rank}" / "memory_snapshot.pkl" for rank in (5, 0)]
    status, out, _ = run("snapshot", *files)
    assert status == 0 and "Not readable" in out and "rank 5" in out


def test_one_recording_is_what_it_always_was(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3.pickle", out_of_memory())
    status, out, _ = run("snapshot", path)
    assert status == 0 and "Groups of equal ranks" not in out


@pytest.mark.parametrize("name", ["missing*.pkl", "empty"])
def test_no_recording_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    status, _, err = run("snapshot", tmp_path / name)
    assert status == 1 and "has no recording" in err


def test_what_is_about_one_recording_is_refused(tmp_path: Path) -> None:
    for option in (("--html", tmp_path / "page.html"), ("--open",)):
        status, _, err = run("snapshot", job(tmp_path / option[0]), *option)
        assert status == 1 and f"{option[0]} is about one recording" in err


@pytest.mark.slow  # waits for it
def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CONNECT_S", 0.5)
    status, _, err = run("snapshot", job(tmp_path / "job"), "--dask", "tcp://127.0.0.1:1")
    assert status == 1
    assert ("cannot be reached" in err) or ("is not installed" in err)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed, the extra `cluster`")
@pytest.mark.slow  # two processes of a cluster; what a cluster may lack is tested below
def test_a_dask_cluster_finds_what_this_machine_finds(tmp_path: Path) -> None:
    from distributed import LocalCluster

    files = recordings([job(tmp_path / "job")])
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]
        there = read_job(files, dask=cluster.scheduler_address)
    here = read_job(files)
    assert sorted(there, key=lambda one: one.file) == sorted(here, key=lambda one: one.file)


@pytest.mark.usefixtures("read_here")
def test_planted_ranks_are_found_and_a_broken_file_costs_only_itself(tmp_path: Path) -> None:
    """Two stages of a pipeline, of eight ranks each, three odd ranks and a truncated file."""
    odd = {
        2: Variant(batch_factor=2),
        7: Variant(kept_bytes=64 * MIB, runs_out=True),
        14: Variant(held_bytes=2048 * MIB),
    }
    variants = {0: Variant(), 8: Variant(num_layers=3 * NUM_LAYERS // 4), **odd}
    made = {
        rank: pickle.dumps(make_snapshot(4_000, num_stacks=90, variant=variant), protocol=4)
        for rank, variant in variants.items()
    }
    for rank in range(16):
        path = tmp_path / f"rank{rank}" / "memory_snapshot.pkl"
        path.parent.mkdir()
        path.write_bytes(made[rank if rank in odd else rank // 8 * 8])
    broken = tmp_path / "rank4" / "memory_snapshot.pkl"
    broken.write_bytes(made[0][: -len(made[0]) // 100])  # the end is missing, known when all is read
    status, out, _ = run("snapshot", tmp_path, "--json")
    assert status == 0
    found = json.loads(out)
    found_odd = {Path(file).parent.name for group in found["groups"] if group["is_odd"] for file in group["files"]}
    assert found_odd == {f"rank{rank}" for rank in odd} and found["worst_rank"] == "rank 7"
    assert sum(not group["is_odd"] for group in found["groups"]) == 2
    assert len(found["ranks"]) == 15 and all(3_990 < one["entries"] <= 4_000 for one in found["ranks"])
    (unread,) = found["unreadable"]
    assert unread["rank"] == 4 and "is truncated" in unread["problem"]


@pytest.mark.slow  # two processes
def test_a_process_that_dies_costs_only_its_own_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "num_processes_for", lambda files: 2)
    files = recordings([job(tmp_path / "job")])[1:6]
    found = read_job(files, read=dying_reader)
    problems = {one.rank: one.problem for one in found if one.problem}
    assert {one.rank for one in found} == {1, 2, 3, 4, 5} and problems.keys() == {3, 5}
    assert problems[3] == "The process that read it has died."


def test_processes_are_as_many_as_there_is_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is free, of which the largest file needs eight times its size; packed, eighty times."""
    files = [tmp_path / f"rank{rank}.pkl" for rank in range(8)]
    for file in files:
        with file.open("wb") as out:
            out.truncate(50 * MIB if file.name == "rank4.pkl" else MIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(reading, "_free_bytes", lambda: 2 * 3 * (150 + 400) * MIB)
    assert reading.num_processes_for(files) == 3
    assert reading.num_processes_for(files[:3]) == 3
    monkeypatch.setattr(reading, "_free_bytes", lambda: 100 * MIB)
    assert reading.num_processes_for(files) == 1
    packed = files[4].rename(tmp_path / "rank4.pkl.gz")
    monkeypatch.setattr(reading, "_free_bytes", lambda: 2 * 3 * (150 + 4000) * MIB)
    assert reading.num_processes_for([packed] * 5) == 3


def test_nothing_of_a_rank_stays_where_it_was_read(tmp_path: Path) -> None:
    """A process reads many: 64 ranks of a million entries had left 1.4 GB in each of two processes."""
    (file, *_) = recordings([job(tmp_path / "job")])
    gc.collect()
    before = {id(one) for one in gc.get_objects() if type(one) in (Replay, Snapshot)}
    gc.disable()
    try:
        assert read_rank(str(file), None).peak_bytes == 4 * MIB
        assert [one for one in gc.get_objects() if type(one) in (Replay, Snapshot) and id(one) not in before] == []
    finally:
        gc.enable()


class _Workers(Executor):
    """A cluster whose workers answer with something."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def submit(self, *_: object) -> Any:  # type: ignore[override]
        future: Future[object] = Future()
        if isinstance(self._answer, Exception):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ModuleNotFoundError("No module named 'tracer'\nand more"), "torch-timeline: No module named 'tracer'\nHint"),
        (("file", "rank"), "have another version of torch-timeline"),
    ],
)  # fmt: skip
def test_workers_that_lack_the_program_are_one_sentence(answer: object, said: str) -> None:
    with pytest.raises(TracerError, match=said) as caught:
        reading._check_cluster(_Workers(answer), "tcp://here")
    assert "Install this version" in str(caught.value.hint)
    reading._check_cluster(_Workers(reading.answer_of()), "tcp://here")


@pytest.mark.usefixtures("read_here")
def test_recordings_whose_names_tell_no_rank_are_runs_by_name(tmp_path: Path) -> None:
    """`bf16` is not rank 16, nor is the second file of a sweep."""
    for name, size in (("fp32", 8 * MIB), ("bf16", 4 * MIB), ("ctx_128", 2 * MIB)):
        trace = [entry("alloc", BASE, size)]
        write(tmp_path / f"{name}.pickle", snapshot(trace, [segment(BASE, 16 * MIB, [block(BASE, size)])]))
    status, out, _ = run("snapshot", tmp_path)
    assert status == 0
    assert "Largest peak of 3 runs:" in out and "fp32.pickle, with a peak of 8.00 MiB." in " ".join(out.split())
    rows = [line for line in out.splitlines() if line.rstrip().find(".pickle") > 0 and "16.00 MiB" in line]
    assert [Path(row.split()[4]).stem for row in rows] == ["bf16", "ctx_128", "fp32"]
    for words in ("rank 16", "no recording", "no rank", "odd", "Odd", "alike", "Groups of equal ranks"):
        assert words not in out
    found = json.loads(run("snapshot", tmp_path, "--json")[1])
    assert found["missing"] == []


def test_a_folder_that_goes_and_a_file_that_cannot_be_read_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(5, "Input/output error")

    assert num_processes_for([tmp_path / "gone.pickle"]) == 1
    with monkeypatch.context() as failing:
        failing.setattr(reading, "load_snapshot", gone)
        assert read_rank("rank3.pickle", None).problem == "Cannot read rank3.pickle: Input/output error."
    monkeypatch.setattr(Path, "rglob", gone)
    status, out, err = run("snapshot", tmp_path)
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == f"Error: Cannot read the folder {tmp_path}: Input/output error."
