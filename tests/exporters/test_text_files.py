"""max_mem.txt, cuda_timing.txt and peak.json as the programs that read them see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.from_recording.test_memory_timeline import cycle
from tests.test_json_documents import HEADER, keys
from tests.training_steps import ONE_OF_EACH, Recorded
from tracer.answers.peak import AllocatorPeak
from tracer.answers.recording_findings import combine_cycles
from tracer.answers.run_results import RunResults
from tracer.blocks.from_recording.memory_timeline import Breakdown
from tracer.blocks.table import CountedParts
from tracer.capture.run_facts import PHASES, PhaseTimings, RunOrigin
from tracer.exporters.files import write_json
from tracer.exporters.json_documents.peak import FORMAT, VERSION, peak_document
from tracer.exporters.max_mem import cuda_timing_text, max_mem_text, write_max_mem

GIB = 1 << 30
MAX_KEYS = ["Parameter", "Opt", "Input", "Temp", "Activation", "Grads", "Autograd_detail", "Intermediate"]
# The contract of peak.json.
CONTRACT = {"device", "peak_bytes", "allocator_peak_bytes", "cycle", "time_us", "rows"}
ROW = {"bytes", "count", "category", "torch_category", "evidence", "phase", "module", "op", "file", "line"}


def parse_max_mem(text: str) -> dict[str, float]:
    """What tensorgrad's `parse_memory_breakdowns.py` makes of the file."""
    found = {}
    for line in text.splitlines():
        if line.startswith(("Max ", "Peak total memory")):
            words = line.split()
            if len(words) >= 4:
                key = "Peak_Total" if line.startswith("Peak") else words[1][0] + words[1][1:].lower()
                found[key] = float(words[-1])
    return found


def parse_total_time(text: str) -> tuple[float, float] | None:
    """What tensorgrad's `plot_timing.py` makes of the file."""
    for line in text.splitlines():
        if line.startswith("total_time:"):
            match = re.match(r"total_time: ([\d.]+)\+/-([\d.]+)ms", line)
            if match:
                return float(match.group(1)), float(match.group(2))
    return None


# ---- max_mem.txt -----------------------------------------------------------------------------------------------------


def test_the_block_is_the_guides_line_for_line() -> None:
    rows = [1.25 * GIB, 0.5 * GIB, 0, 0.375 * GIB, 1 * GIB, 1.125 * GIB, 0.25 * GIB]
    text = max_mem_text(Breakdown("cuda:0", (cycle(int(6.75 * GIB), *map(int, rows)),)), [])
    assert text.split("\n\n")[0].splitlines() == [
        "Memory Breakdown at Peak for cuda:0",
        "---------",
        "Max PARAMETER (GB): 1.250000",
        "Max OPT (GB): 0.500000",
        "Max INPUT (GB): 0.000000",
        "Max TEMP (GB): 0.375000",
        "Max ACTIVATION (GB): 1.000000",
        "Max GRADS (GB): 1.125000",
        "Max AUTOGRAD_DETAIL (GB): 0.250000",
        "Max INTERMEDIATE (GB): 2.250000",
        "Peak total memory (GB): 6.750000",
    ]
    assert text.endswith("\n")


def test_what_a_gb_is_and_what_was_averaged_is_said() -> None:
    one, two = (max_mem_text(Breakdown("cpu", (cycle(9, 9),) * n), []) for n in (1, 2))
    assert "GB means 2**30 bytes. Means over 1 cycle. The rows above are by torch's own\ncategories," in one
    assert "Means over 2 cycles." in two
    assert "left out" not in one + two
    cut = max_mem_text(Breakdown("cpu", (cycle(9, 9),), num_left_out=2), [])
    assert "Cut short by the end of the run, and left out: 2 cycles." in cut


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 10**11), min_size=7, max_size=7), st.integers(0, 10**11)), min_size=1)
)
def test_the_parser_reads_every_row_and_nothing_else(cycles: list[tuple[list[int], int]]) -> None:
    drawn = Breakdown("cuda:0", tuple(cycle(sum(rows) + more, *rows) for rows, more in cycles))
    found = parse_max_mem(max_mem_text(drawn, []))
    assert list(found) == [*MAX_KEYS, "Peak_Total"]
    for value, size_bytes in zip(found.values(), [*drawn.rows_bytes.values(), drawn.peak_bytes], strict=True):
        assert value == pytest.approx(size_bytes / GIB, abs=0.5e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_on_a_workload_of_each_kind_the_parser_reads_it_and_finds_a_peak(
    name: str, recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    findings = combine_cycles(recorded(name).cycles)
    write_max_mem(findings.breakdown, findings.peaks, tmp_path / "max_mem.txt")
    text = (tmp_path / "max_mem.txt").read_text()
    found = parse_max_mem(text)
    assert list(found) == [*MAX_KEYS, "Peak_Total"]
    assert found["Peak_Total"] > 0, "a small model is not 0.00"
    assert sum(found[key] for key in MAX_KEYS) == pytest.approx(found["Peak_Total"], abs=9 * 0.5e-6)
    assert max(map(len, text.splitlines())) <= 80
    _assert_second_part_sums(text, findings.breakdown.peak_bytes)


def _assert_second_part_sums(text: str, peak_bytes: int) -> None:
    second = text.split("At the true peak of ")[1].splitlines()[1:]
    *rows, total = [int(re.search(r"(\d+) bytes", line).group(1)) for line in second]  # type: ignore[union-attr]
    assert total == pytest.approx(peak_bytes, abs=1)
    assert sum(rows) == pytest.approx(total, abs=len(rows))  # each is a mean, printed without its half byte
    assert rows == sorted(rows, reverse=True)


def test_the_part_at_the_true_peak_has_the_means_over_cycles(recorded: Callable[[str], Recorded]) -> None:
    findings = combine_cycles(recorded("transformer").cycles)
    text = max_mem_text(findings.breakdown, findings.peaks)
    one, two = (peak.by_category()["ACTIVATION"] for peak in findings.peaks)
    assert re.search(rf"ACTIVATION +{(one + two) / 2:.0f} bytes", text)
    above, _, below = text.partition("torch sorts memory by rules of its own")
    assert "Max ACTIVATION (GB)" in above and "  ACTIVATION " in below, "why the two differ stands between them"


# ---- cuda_timing.txt -------------------------------------------------------------------------------------------------


def timings(clock: str = "CUDA", **durations: tuple[float, ...]) -> PhaseTimings:
    return PhaseTimings("cuda:0", clock, {**dict.fromkeys(PHASES, (1.0, 2.0)), **durations})


def test_the_timing_file_line_for_line() -> None:
    text = cuda_timing_text(timings(model_fwd=(1.0, 1.5), total_time=(20.0, 22.0), opt_step=(0.0004,)))
    assert text.splitlines() == [
        "CUDA timing for key events:",
        "---------------",
        "model_fwd: 1.250+/-0.250ms on CUDA",
        "loss_bk: 1.500+/-0.500ms on CUDA",
        "total_time: 21.000+/-1.000ms on CUDA",
        "opt_step: 0.000+/-0.000ms on CUDA",
    ]


def test_the_clock_is_named() -> None:
    assert "model_fwd: 1.500+/-0.500ms on CPU\n" in cuda_timing_text(timings("CPU"))


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_the_timing_parser_reads_any_duration(durations: list[float]) -> None:
    found = parse_total_time(cuda_timing_text(timings(total_time=tuple(durations))))
    assert found is not None
    mean = sum(durations) / len(durations)
    assert found[0] == pytest.approx(mean, abs=1e-3, rel=1e-9)
    variance = sum((duration - mean) ** 2 for duration in durations) / len(durations)
    assert found[1] == pytest.approx(variance**0.5, abs=1e-2, rel=1e-6)


# ---- peak.json -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_on_a_workload_of_each_kind_the_rows_of_peak_json_sum_to_the_allocators_count(
    name: str, recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    findings = combine_cycles(recorded(name).cycles)
    write_json(tmp_path / "peak.json", peak_document(RunResults(findings)))
    document: dict[str, Any] = json.loads((tmp_path / "peak.json").read_text())
    assert set(document) >= CONTRACT
    assert all(set(row) >= ROW for row in document["rows"])
    assert sum(row["bytes"] for row in document["rows"]) == document["peak_bytes"] == document["allocator_peak_bytes"]
    assert sum(row["count"] for row in document["rows"]) == len(findings.worst.peak.blocks.size_bytes)
    assert document["device"] == "cpu"


def test_peak_json_is_about_the_cycle_with_the_largest_peak(recorded: Callable[[str], Recorded]) -> None:
    findings = combine_cycles(recorded("lbfgs").cycles)
    small, large = findings.peaks
    assert small.peak_bytes < large.peak_bytes
    document = peak_document(RunResults(findings))
    assert (document["cycle"], document["peak_bytes"]) == (1, large.peak_bytes)
    assert document["time_us"] == large.time_ns / 1000
    first, last = findings.parts
    assert peak_document(RunResults(combine_cycles([last, first])))["cycle"] == 0
    assert peak_document(RunResults(combine_cycles([first, first])))["cycle"] == 0, "the first of equals"


def test_rows_are_told_apart_as_the_report_tells_them(recorded: Callable[[str], Recorded]) -> None:
    findings = combine_cycles(recorded("fno_2d_new_zeros").cycles)
    document = peak_document(RunResults(findings))
    assert [row["bytes"] for row in document["rows"]] == [row.bytes for row in findings.peaks[0].rows]
    assert any(row["file"] and row["file"].endswith("fno_layers.py") and row["line"] > 0 for row in document["rows"])  # type: ignore[operator]
    assert any(row["module"] for row in document["rows"])


def test_peak_json_says_with_what_the_run_was_made(recorded: Callable[[str], Recorded]) -> None:
    findings = combine_cycles(recorded("lbfgs").cycles)
    origin = RunOrigin("main.py --seed 1", "2026-01-01", "2.15.0", "3.11")
    document = peak_document(RunResults(findings, origin=origin))
    assert {name for row in document["rows"] for name in row} == set(keys("A row"))
    assert set(document) == {*HEADER, *keys("peak.json")}
    assert (document["format"], document["version"]) == (FORMAT, VERSION)
    assert (document["torch"], document["command"]) == ("2.15.0", "main.py --seed 1")
    text = (Path(__file__).resolve().parents[2] / "docs" / "files.md").read_text("utf-8")
    inner = [one.name for kind in (AllocatorPeak, CountedParts) for one in fields(kind)]
    assert [name for name in inner if f"`{name}`" not in text] == []


def test_a_caveat_is_the_first_thing_behind_the_rows() -> None:
    plain = max_mem_text(Breakdown("cuda:0", (cycle(9, 9),)), [])
    said = max_mem_text(Breakdown("cuda:0", (cycle(9, 9),)), [], caveat="Nothing was computed.")
    rows, rest = plain.split("\n\n", 1)
    assert said == f"{rows}\n\nNothing was computed.\n\n{rest}"


def test_notes_are_its_last_lines() -> None:
    plain = max_mem_text(Breakdown("cuda:0", (cycle(9, 9),)), [])
    said = max_mem_text(Breakdown("cuda:0", (cycle(9, 9),)), [], notes=["The program read 1 value.", "  at train.py:3"])
    assert said == f"{plain}\nThe program read 1 value.\n  at train.py:3\n"
