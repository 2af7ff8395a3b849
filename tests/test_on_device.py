"""The command for a lent GPU: programs side by side, each with its limits, ended whole, and not asked again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.on_device import PARTS, Result, Room, Task, document, is_right, plan, run_all, table_rows

_GOOD = "print('| program | sum |'); print('| --- | --- |'); print('| one | yes |'); print('| all 1 | 1 of 1 |')"
_HANGS = """
import os, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(os.environ["LEFT"], "w").write(str(left.pid))
time.sleep(600)
"""
_STOPS = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)"
_ROOM = Room(cores=2, device_bytes=10 << 30)


def _task(name: str, **options: object) -> Task:
    given: dict[str, object] = {"part": 1, "words": (f"{name}_program",), "process_bytes": 0, **options}
    return Task(name=name, **given)  # type: ignore[arg-type]


def _run(tmp_path: Path, tasks: list[Task], seconds: float = 600) -> dict[str, Result]:
    programs = {"good": _GOOD, "bad": "raise SystemExit('a fault')", "hangs": _HANGS, "stops": _STOPS}
    for name, source in programs.items():
        (tmp_path / f"{name}_program.py").write_text(source)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "LEFT": str(tmp_path / "left")}
    found: dict[str, Result] = {}
    run_all(
        tasks,
        lambda _: variables,
        _ROOM,
        time.monotonic() + seconds,
        lambda task, result: found.update({task.name: result}),
    )
    return found


def test_programs_end_by_themselves_or_by_their_limit_with_all_that_they_started(tmp_path: Path) -> None:
    tasks = [_task("hangs", limit_s=2.0), _task("good"), _task("bad")]
    found = _run(tmp_path, tasks)
    assert {name: result["status"] for name, result in found.items()} == {"hangs": None, "good": 0, "bad": 1}
    assert found["good"]["rows"] == [["program", "sum"], ["one", "yes"]]
    assert not Path("/proc", (tmp_path / "left").read_text()).exists()
    assert [is_right(task, found[task.name]) for task in tasks] == [False, True, False]
    said = document("a card", tasks, {task.key: found[task.name] for task in tasks}, 100)
    assert "| 1. Sums and peaks beside an independent bookkeeper | 3 of 3 | 1 |" in said
    assert said.index("| one | yes |") < said.index("### 1: hangs: ended after 2 s") < said.index("a fault")


def test_what_the_end_of_the_time_cut_off_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(tmp_path, [_task("good")], seconds=5) == {}  # none begins so late
    monkeypatch.setattr("benchmarks.on_device._TO_START_S", 0.0)
    assert _run(tmp_path, [_task("hangs", limit_s=600.0)], seconds=1) == {}


def test_a_process_that_never_answers_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.on_device._TO_START_S", 0.0)
    monkeypatch.setattr("benchmarks.on_device._TO_END_S", 0.5)
    began = time.monotonic()
    assert _run(tmp_path, [_task("stops")], seconds=1) == {}
    assert time.monotonic() - began < 20


def test_a_program_begins_where_there_are_a_core_and_memory_of_the_device_and_a_clock_runs_alone() -> None:
    room = Room(cores=3, device_bytes=20 << 30)
    small, large, alone = _task("a"), _task("b", process_bytes=18 << 30), _task("c", is_alone=True)
    assert room.has(large, []) and room.has(small, [small, small]) and room.has(alone, [])
    assert not room.has(small, [small] * 3)
    assert not room.has(large, [small, small])
    assert not room.has(alone, [small]) and not room.has(small, [alone])


def test_the_plan_takes_each_program_for_its_seconds_the_median_of_its_part_or_its_limit() -> None:
    tasks = [_task(str(number), part=1 + number // 3) for number in range(5)]
    tasks += [_task("clock", part=5, is_alone=True), _task("never", part=7, limit_s=60.0)]
    results: dict[str, Result] = {
        "1: 0": {"processor_s": 4.0}, "1: 1": {"processor_s": 2.0}, "2: 3": {"processor_s": 10.0},
        "5: clock": {"processor_s": 1.0},
    }  # fmt: skip
    # Two cores: 0 until 4, 1 until 2, 2 (the median, 3) until 5, 3 until 14, 4 (10) until 15, then the clock, and one
    # of which nothing is known.
    assert plan(tasks, results, _ROOM) == {1: 5.0, 2: 15.0, 5: 16.0, 7: 76.0}


def test_the_first_table_is_read_without_its_sums() -> None:
    printed = "torch 2\n\n| a | b |\n| --- | --- |\n| x | y |\n| all 1 | 2 |\n\n| later | table |\n"
    assert table_rows(printed) == [["a", "b"], ["x", "y"]]
    assert table_rows("40 passed\n") == []
    assert {number for number, part in PARTS.items() if not part.is_right(["x", "CRASH", "", "", "", ""])} == {
        1,
        2,
        3,
        4,
        8,
    }
