"""`trace`: what it prints, the files that it writes, and what it refuses."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tests.trace import chrome
from tracer.exporters.json_documents.peak import read_peak_json


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main.app, [str(argument) for argument in arguments], prog_name="main.py")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    events = [
        *chrome.training_step(),
        chrome.launch("cudaLaunchKernel", 12, 1, correlation=1),
        chrome.kernel("relu_kernel", 14, 6, launched_by=11, correlation=1),
        chrome.launch("cudaLaunchKernel", 54, 1, correlation=2, thread=2),
        chrome.kernel("relu_backward_kernel", 60, 5, launched_by=14, correlation=2),
    ]
    return chrome.write(tmp_path / "trace.json", events)


def test_the_screen_has_memory_and_time(file: Path) -> None:
    result = invoke("trace", file)
    assert result.exit_code == 0, result.stderr
    for words in (
        "Peak: 6.50 KiB on cuda:0 in backward of step 1",
        "The rows below sum to 6,656 bytes. The allocator's own count is the same.",
        "net.py:5",
        # 13 before the first launch, 35 between the kernels, 35 behind the last of 100 us.
        "83 % of the time the GPU waits for the host to launch work",
        "relu_backward_kernel, aten::threshold_backward  net.py:5, Net_0",
    ):
        assert words in result.stdout, words


def test_json_rows_sum_to_the_peak_and_times_to_the_step(file: Path) -> None:
    found = json.loads(invoke("trace", file, "--json").stdout)
    memory, times = found["memory"], found["times"]
    assert sum(row["bytes"] for row in memory["rows"]) == memory["peak_bytes"] == 6656
    assert sum(row["forward_us"] + row["backward_us"] + row["other_us"] for row in times["launchers"]) == 11
    assert [(row["op"], row["forward_us"], row["backward_us"], row["host_wait_us"]) for row in times["launchers"]] == [
        ("aten::threshold_backward", 0, 5, 35),
        ("aten::relu", 6, 0, 13),
    ]
    total = times["total"]
    parts = ("compute_us", "communication_us", "copies_us", "host_wait_us", "launched_wait_us")
    assert sum(total[part] for part in parts) == total["wall_us"] == 100


def test_the_files_of_a_run_are_written(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    page, report, out = tmp_path / "p.html", tmp_path / "r.db", tmp_path / "t.json.gz"
    result = invoke("trace", file, "--save-dir", folder, "--html", page, "--sqlite", report, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in folder.iterdir()} == {
        "max_mem.txt", "memory_timeline.html", "peak.json", "memory_report.sqlite", "run_time_report.sqlite",
        "memory_snapshot.pkl", "trace.json.gz",
    }  # fmt: skip
    assert read_peak_json(folder / "peak.json").bytes == 6656
    packed = (folder / "trace.json.gz").read_bytes()
    names = {event["name"] for event in json.loads(gzip.decompress(packed))["traceEvents"]}
    assert {"memory total", "relu_kernel", "peak 6.50 KiB"} <= names
    assert "6,656" in (tmp_path / "p.html").read_text() or "6656" in (tmp_path / "p.html").read_text()
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(packed)
    with sqlite3.connect(tmp_path / "r.db") as connection:
        assert connection.execute("select count(*) from sqlite_master").fetchone()[0] > 0
    again = invoke("diff", folder, folder, "--json")
    assert json.loads(again.stdout)["devices"][0]["bytes"] == 0


def test_diff_takes_traces_and_folders_of_runs(file: Path, tmp_path: Path) -> None:
    assert invoke("trace", file, "--save-dir", tmp_path / "out", "--quiet").exit_code == 0
    more = json.loads(file.read_text())
    for event in more["traceEvents"]:
        if event["name"] == "[memory]" and event["args"]["Addr"] == 0x3000:
            event["args"]["Bytes"] *= 3
            event["args"]["Total Allocated"] += 1024 if event["args"]["Bytes"] > 0 else 0
    other = tmp_path / "more.json"
    other.write_text(json.dumps(more))
    for before in (file, tmp_path / "out"):
        (device,) = json.loads(invoke("diff", before, other, "--json").stdout)["devices"]
        assert device["bytes"] == 1024, before
        assert [change["bytes"] for change in device["by_line"] if change["bytes"]] == [1024]
    assert "cannot be compared with a trace" in invoke("diff", file, tmp_path / "nothing").stderr
    assert "--help" not in invoke("diff", file, file).stderr


def test_a_trace_without_allocations_says_so_and_has_times(tmp_path: Path) -> None:
    events = [chrome.operator("aten::mm", 0, 9, External_id=4), chrome.kernel("mm", 3, 4, launched_by=4)]
    file = chrome.write(tmp_path / "trace.json", events)
    result = invoke("trace", file)
    assert result.exit_code == 0 and "profile_memory=True" in result.stdout and "the GPU" in result.stdout
    refused = invoke("trace", file, "--html", tmp_path / "p.html")
    assert refused.exit_code == 1 and "nothing to write" in refused.stderr and not (tmp_path / "p.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.json",), "does not exist"),
        (("trace.json", "--device", "cuda:7"), "no allocations on cuda:7"),
        (("trace.json", "--html", "trace.json"), "is named twice"),
    ],
)
def test_mistakes_are_a_sentence_and_a_hint(
    file: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(file.parent)
    result = invoke("trace", *arguments)
    assert (result.exit_code, result.stderr.startswith("Error: ")) == (1, True)
    assert words in result.stderr and "Hint: " in result.stderr


def test_snapshot_given_a_trace_names_the_command(file: Path) -> None:
    result = invoke("snapshot", file)
    assert result.exit_code == 1 and "`trace`" in result.stderr


def rank_trace(folder: Path, number: int, length_us: float) -> None:
    document = json.loads(chrome.text_of([*chrome.training_step(), chrome.kernel("ncclDevKernel", 10, length_us)]))
    (folder / f"rank{number}.json").write_text(json.dumps({"distributedInfo": {"rank": number}, **document}))


def test_a_folder_is_a_job(tmp_path: Path) -> None:
    rank_trace(tmp_path, 0, 30)
    rank_trace(tmp_path, 1, 10)
    (tmp_path / "rank2.json").write_text("[]")
    result = invoke("trace", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert (
        "2 ranks: the others wait most for rank 1, 0.020 ms together; it came last in 1 of 1 collective."
        in " ".join(result.stdout.split())
    )
    assert "Not read," in result.stdout and "6.50 KiB" in result.stdout
    found = json.loads(invoke("trace", tmp_path, "--json").stdout)
    assert [(rank["waited_us"], rank["waited_for_us"], rank["came_last"]) for rank in found["ranks"]] == [
        (20, 0, 0), (0, 20, 1),
    ]  # fmt: skip
    assert invoke("trace", tmp_path, "--html", tmp_path / "p.html").exit_code == 1


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    result = invoke("trace", tmp_path)
    assert result.exit_code == 1 and "has no trace" in result.stderr


def test_names_in_a_file_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    events = chrome.training_step()
    for event in events:
        if event["name"] != "[memory]" and not event["name"].startswith("autograd"):
            event["name"] += "\x1b[31m\u202e"
    result = invoke("trace", chrome.write(tmp_path / "a\x1b[31m\u202e.json", events))
    assert result.exit_code == 0
    assert "ProfilerStep#0\\x1b[31m\\u202e" in result.stdout
    assert not {"\x1b", "\u202e"} & set(result.stdout + result.stderr)
