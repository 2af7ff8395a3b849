"""Memory by line: at the peak what its rows say, and a slow count agrees on the most that a line ever had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.training_steps import Recorded
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.line_memory import LineMemory, line_memory
from tracer.analysis.profiles.peak import group_rows
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.capture.sources.source_line import SourceLine


def test_lines_have_the_bytes_of_the_peaks_rows_and_backward_those_of_its_forward(
    recorded: Callable[[str], Recorded],
) -> None:
    cycle = recorded("transformer").cycles[-1]
    found = {one.at: one for one in line_memory(cycle)}
    expected, of_backward = Counter[SourceLine](), Counter[SourceLine]()
    for row in cycle.peak.rows:
        places = {(row.file, row.line), *([(row.caller_file, row.caller_line)] if row.caller_file != row.file else [])}
        for file, line in places:
            if file is not None and line is not None:
                expected[SourceLine(file, line)] += row.bytes
                of_backward[SourceLine(file, line)] += row.bytes if row.phase == "backward" else 0
    assert {at: one.peak_bytes for at, one in found.items() if one.peak_bytes} == {
        k: v for k, v in expected.items() if v
    }
    assert all(one.backward_bytes == of_backward[at] for at, one in found.items())


def test_a_slow_count_agrees_on_a_lines_own_peak_and_on_where_it_was_freed(
    recorded: Callable[[str], Recorded],
) -> None:
    """Block by block and event by event, for the largest lines."""
    cycle = recorded("transformer").cycles[-1]
    rows, group = group_rows(cycle, None, cycle.blocks, by_step=False)
    lifetimes, sizes = cycle.lifetimes, cycle.blocks.size_bytes.tolist()
    made, freed, end = lifetimes.made_at.tolist(), lifetimes.freed_at.tolist(), len(lifetimes.events)

    def place(block: int) -> tuple[str | None, SourceLine | None]:
        if freed[block] == end:
            return None, None
        event = lifetimes.events[freed[block]]
        phase = Phase(int(cycle.attribution.allocation_phase[event])).name.lower()
        return phase, line_of_frame(cycle.recording, int(cycle.attribution.allocation_frame[event]))

    for one in line_memory(cycle)[:8]:
        mine = [at for at, number in enumerate(group.tolist()) if one.at in _lines(rows[number])]
        assert one.own_peak_bytes == max(
            sum(sizes[at] for at in mine if made[at] <= now < freed[at]) for now in range(-1, end)
        )
        at_peak = [at for at in mine if made[at] <= cycle.peak.position < freed[at]]
        of_places = Counter[tuple[str | None, SourceLine | None]]()
        for at in at_peak or mine:
            of_places[place(at)] += sizes[at]
        assert of_places[one.freed_in, one.freed_at] == max(of_places.values())


def test_what_backward_frees_says_so(recorded: Callable[[str], Recorded]) -> None:
    cycle = recorded("transformer").cycles[-1]
    held = [one for one in line_memory(cycle) if one.peak_bytes]
    assert _phases(held) <= {"forward", "backward", "optimizer", "other", None}
    assert max(held, key=lambda one: one.backward_bytes).backward_bytes > 0
    assert "backward" in _phases(held)


def _lines(row: PeakRow) -> set[SourceLine]:
    places = ((row.file, row.line), (row.caller_file, row.caller_line))
    return {SourceLine(file, line) for file, line in places if file is not None and line is not None}


def _phases(lines: list[LineMemory]) -> set[str | None]:
    return {one.freed_in for one in lines}
