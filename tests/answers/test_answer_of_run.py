"""The screen of a profile: its tables, and what is said of steps, cycles, collectives and 32 bits beside 16."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.answer_screens import peak_screen
from tests.blocks.from_recording.test_attribution import BLOCK_BYTES, blocks, one_of_four, sharded, train
from tests.training_steps import record
from tests.truth.isolate import value_in_fresh_process
from tracer.answers.answer_tables import categories_table
from tracer.answers.beside_torch import FIRST, NOT_PLACED, NOT_THERE, beside_sentences, beside_torch
from tracer.answers.findings import CycleFindings, RunFindings
from tracer.answers.null_run import values_lines
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.answers.rows import Row
from tracer.blocks.kinds import meaning_of, words_of
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.run_facts import DriverLooks, KnownCall, Look, OtherProcess, ValueRead, ValuesRead


@cache
def cycle() -> CycleFindings:
    """One step that has its peak where no phase is: in what the loop does with the outputs."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        with torch.profiler.record_function("ProfilerStep#1"):
            model(torch.ones(8, 64)).square().mean().backward()
            torch.ones(1 << 18).sum()
            optimizer.step()

    (results,) = record(step)
    return find_in_cycle(read_recording(results))


def screen_of(findings: RunFindings) -> list[str]:
    return [line.rstrip() for line in peak_screen(findings).splitlines()]


def phases_of(lines: list[str]) -> list[list[str]]:
    """Phase of each row of the table, and whether it is marked."""
    if "The step, phase by phase" not in lines:
        return []
    at = lines.index("The step, phase by phase")
    rows = lines[at + 2 : lines.index("", at)] if "" in lines[at:] else lines[at + 2 :]
    return [[row.split()[1], *row.split()[4:]] for row in rows]


def test_the_peaks_phase_is_a_row_in_order_of_time() -> None:
    found = phases_of(screen_of(combine_cycles([cycle()])))
    assert found == [["forward"], ["backward"], ["other", "<-", "peak"], ["optimizer"]]


def test_a_table_without_rows_is_not_printed() -> None:
    found = cycle()
    outside = replace(found.source.attribution, op_step=np.full_like(found.source.attribution.op_step, -1))
    changed = replace(found.source, attribution=outside)
    peak = replace(found.peak, phase=None)
    assert phases_of(screen_of(combine_cycles([replace(found, source=changed, peak=peak)]))) == []


def test_peaks_that_read_alike_do_not_differ() -> None:
    peak = replace(cycle().peak, peak_bytes=5 << 30)
    slightly_more = replace(cycle(), peak=replace(peak, peak_bytes=peak.peak_bytes + 512))
    assert "recorded cycles differ" not in " ".join(
        screen_of(combine_cycles([replace(cycle(), peak=peak), slightly_more]))
    )


@pytest.mark.parametrize(("is_whole", "differ"), [(True, True), (False, False)])
def test_only_whole_cycles_differ(is_whole: bool, differ: bool) -> None:
    found = cycle()
    smaller = replace(found, source=replace(found.source, is_whole=is_whole), peak=replace(found.peak, peak_bytes=1))
    text = " ".join(screen_of(combine_cycles([cycle(), smaller])))
    assert ("recorded cycles differ" in text) == differ
    assert ("1 cycle was cut short by the end of the run" in text) == (not is_whole)


def rows_of(lines: list[str], title: str) -> list[tuple[str, int]]:
    """Name and bytes of each row of a table, its sum the last."""
    at = lines.index(title)
    end = next(number for number, line in enumerate(lines) if number > at and line.startswith("sum"))
    found = [re.match(r"( *\S.*?) +([\d,]+) +[\d.]+ K?i?B", line) for line in lines[at + 2 : end + 1]]
    return [(row[1], int(row[2].replace(",", ""))) for row in found if row is not None]


def with_modules(sizes: dict[str, int]) -> RunFindings:
    row = cycle().peak.rows[0]
    rows = tuple(replace(row, module=name, bytes=size, file=None, caller_file=None) for name, size in sizes.items())
    peak = replace(cycle().peak, rows=rows, peak_bytes=sum(sizes.values()))
    return combine_cycles([replace(cycle(), peak=peak)])


@pytest.mark.parametrize(
    ("small", "names"), [(0, []), (1, ["s0"]), (3, ["3 more"]), (40, ["40 more"])], ids=["none", "1", "3", "40"]
)
def test_outermost_modules_sum_to_the_peak(small: int, names: list[str]) -> None:
    """Those below 2 % together, but for one alone."""
    sizes = {"a.x": 6000, "a.y": 90, "b": 4000} | {f"s{number}": 4 for number in range(small)}
    lines = screen_of(with_modules(sizes))
    rows = rows_of(lines, "By module, with the modules inside it")
    outermost = [row for row in rows[:-1] if not row[0].lstrip().startswith(".")]
    assert [name for name, _ in outermost] == ["a", "b", *names]
    assert sum(size for _, size in outermost) == rows[-1][1] == sum(sizes.values())


def test_a_part_without_bytes_has_a_name_alone() -> None:
    none = with_modules({"a": 0}).worst.peak
    assert "b" in screen_of(with_modules({"a": 6000, "b": 0}))
    assert [row[1:] for row in categories_table(none).rows] == [
        ("", "", "", meaning_of(words_of(none.rows[0].category)))
    ]


def test_where_no_line_is_known_there_is_no_table_of_lines() -> None:
    """As of an nn.Sequential that torch's own modules are all of: kinds in brackets would be the first table again."""
    lines = screen_of(with_modules({"0": 6000, "2": 4000}))
    assert "By line" not in lines and "  By line: no line of your code made any of it." in lines


@pytest.mark.parametrize(("num_places", "last"), [(5, 5), (6, 6), (9, "4 more places: 10 times")])
def test_all_values_that_were_read_are_counted(num_places: int, last: int | str) -> None:
    reads = tuple(
        ValueRead("train.py", number, "main", "aten::item", 1 + number % 4, "1", "exact", False, False, 0)
        for number in range(1, num_places + 1)
    )
    lines = values_lines(ValuesRead(reads))
    assert len(lines) - 1 == (last if isinstance(last, int) else 6)
    assert last in (lines[-1].strip(), len(lines) - 1)


# ---- collectives, and 32 bits ----------------------------------------------------------------------------------------
GIB = 2**30


def row(
    category: str,
    size_bytes: int,
    dtype: str | None,
    *,
    count: int = 1,
    shape: tuple[int, ...] | None = None,
    line: int | None = 5,
) -> Row:
    file = None if line is None else "train.py"
    return Row(size_bytes, count, category, None, "", "forward", None, None, file, line, shape=shape, dtype=dtype)


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_gathered_parameters_and_gradients_have_their_modules() -> None:
    assert value_in_fresh_process(_buffers_of_shards) == dict.fromkeys(("0", "1", "2"), BLOCK_BYTES)


def _buffers_of_shards() -> dict[str | None, int]:
    with one_of_four():
        return _buffers(train(sharded(blocks())))


def _buffers(cycle: CycleFindings) -> dict[str | None, int]:
    """Bytes of what collectives send, by module."""
    sizes = Counter[str | None]()
    for row in cycle.peak.rows:
        sizes[row.module] += row.bytes * (row.category == "COMMUNICATION")
    return dict(+sizes)


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_buckets_are_communication() -> None:
    assert value_in_fresh_process(_buffers_of_ddp) == {"module": 3 * BLOCK_BYTES}


def _buffers_of_ddp() -> dict[str | None, int]:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    return _buffers(train(DistributedDataParallel(blocks())))


# ---- Memory beside torch's allocator: rows sum to the driver's count. ------------------------------------------------


_CUDNN, _CUBLAS = KnownCall(15, "cuDNN", "train.py", 3), KnownCall(17, "cuBLAS", "loss.py", 4)
_BOTH = "one or more of: cuDNN; cuBLAS (loss.py:4)"


def _looks(*beside: int) -> tuple[Look, ...]:
    """Looks at 10, 20, ... with so many bytes beside 100 that are reserved."""
    return tuple(Look(10 * number, size + 100, 100) for number, size in enumerate(beside, 1))


@pytest.mark.parametrize(
    ("driver", "rows"),
    [
        (DriverLooks(_looks(500)), [(500, FIRST)]),
        (DriverLooks(_looks(500, 530), (_CUDNN,)), [(500, FIRST), (30, "cuDNN")]),
        (DriverLooks(_looks(500, 530), (_CUDNN, _CUBLAS)), [(500, FIRST), (30, _BOTH)]),
        (DriverLooks(_looks(500, 530)), [(500, FIRST), (30, NOT_PLACED)]),
        (DriverLooks(_looks(500, 500, 530), (_CUDNN,)), [(500, FIRST), (30, NOT_PLACED)]),  # it rose later
        (DriverLooks(_looks(500, 530, 520), (_CUDNN,)), [(500, FIRST), (20, "cuDNN")]),
        (DriverLooks(_looks(500, 530, 570, 540), (_CUDNN,)), [(500, FIRST), (30, "cuDNN"), (10, NOT_PLACED)]),
        (DriverLooks(_looks(500, 530, 400), (_CUDNN,)), [(400, FIRST)]),
        (DriverLooks(_looks(500), (), (OtherProcess("jupyter", 7, 300),)), [(300, "jupyter, process 7"), (200, FIRST)]),
        (DriverLooks(_looks(-20)), [(-20, NOT_THERE)]),  # an engine sleeps: torch's reserved memory is not mapped
    ],
)
def test_a_rise_is_booked_on_the_known_calls_between_two_looks(
    driver: DriverLooks, rows: list[tuple[int, str]]
) -> None:
    assert [(row.bytes, row.what) for row in beside_torch(driver).rows] == rows


_SIZES = st.lists(st.integers(-50, 1000), min_size=1, max_size=12)
_CALLS = st.lists(st.integers(0, 130), max_size=6)
_OTHERS = st.lists(st.integers(1, 600), max_size=3)


@given(_SIZES, _CALLS, _OTHERS)
def test_rows_and_torchs_reserved_sum_to_the_drivers_count(
    sizes: list[int], times: list[int], others: list[int]
) -> None:
    driver = DriverLooks(
        _looks(*sizes),
        tuple(KnownCall(time, f"call {number}") for number, time in enumerate(sorted(times))),
        tuple(OtherProcess("other", number, size) for number, size in enumerate(others)),
    )
    found = beside_torch(driver)
    assert sum(row.bytes for row in found.rows) + found.reserved_bytes == found.used_bytes == sizes[-1] + 100
    assert all(row.bytes > 0 or row.what == NOT_THERE for row in found.rows)


def test_the_screen_speaks_of_it_where_it_is_more_than_a_twentieth_of_the_device() -> None:
    found = beside_torch(DriverLooks(_looks(500, 530), (_CUDNN,)))
    assert not list(beside_sentences(found, 10_600)) and not list(beside_sentences(found, None))
    (sentence,) = beside_sentences(found, 10_599)
    assert FIRST in sentence
