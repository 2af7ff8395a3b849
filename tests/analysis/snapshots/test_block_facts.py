"""What stacks and lives say of single blocks: by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.analysis.snapshots.test_findings import (
    BACKWARD,
    BASE,
    ENGINE,
    FORWARD,
    FREE_BACKWARD,
    IN_STEP,
    MAIN,
    MALLOC,
    MODEL,
    TORCH,
    ZERO,
    load,
)
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.analysis.snapshots.block_facts import LifeFacts, facts_of_frees
from tracer.analysis.snapshots.phases import DevicePhases
from tracer.analysis.snapshots.sites import Sites
from tracer.snapshot.replay import replay


@dataclass
class BlockOf:
    """One block's facts."""

    table: LifeFacts
    row: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)[self.row]


def facts(path: Path, trace: list[Row], segments: list[Row] | None = None) -> dict[int, BlockOf]:
    """The facts of each block, by its address."""
    loaded = load(path, snapshot(trace, segments))
    (state,) = loaded.devices
    sites, lives = Sites(loaded.stacks), replay(state, {}).lives
    freed = facts_of_frees(state, lives, sites.facts)
    table = LifeFacts(state, lives, DevicePhases(loaded, state, sites.facts), sites, freed)
    return {address: BlockOf(table, row) for row, address in enumerate(lives.addr.tolist())}


def test_a_life_through_backward_and_a_step(tmp_path: Path) -> None:
    end = [segment(BASE, 1 << 20, [block(BASE, 5), block(BASE + 1024, 5)])]
    trace = [
        entry("alloc", BASE, 5, frames=FORWARD),
        entry("alloc", BASE + 1024, 5, frames=BACKWARD),
        entry("alloc", BASE + 2048, 5, frames=IN_STEP),
        *freed(BASE + 2048, 5, frames=IN_STEP[1:]),
        entry("alloc", BASE + 4096, 5, frames=FORWARD),
        *freed(BASE + 4096, 5, frames=FREE_BACKWARD),
    ]
    found = facts(tmp_path / "s", trace, end)
    first, gradient, scratch, last = (found[BASE + at] for at in (0, 1024, 2048, 4096))
    assert first.outside and first.meets_backward and first.meets_step and first.is_at_end and not first.is_before
    assert gradient.in_backward and gradient.meets_step and not gradient.outside
    assert scratch.in_step and scratch.freed_in_step and not scratch.outlives_step and not scratch.is_at_end
    assert last.freed_by_autograd and not last.meets_step and last.has_cpp


def test_a_free_with_the_allocations_own_stack_says_nothing(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 5, frames=BACKWARD), *freed(BASE, 5, frames=BACKWARD)]
    (one,) = facts(tmp_path / "s", trace).values()
    assert one.in_backward and not one.freed_by_autograd


def test_silence_means_autograd_only_where_a_training_is_seen(tmp_path: Path) -> None:
    silent = [entry("alloc", BASE, 5), *freed(BASE, 5)]
    loud = entry("alloc", BASE + 1024, 5, frames=[MODEL, MAIN])
    assert not facts(tmp_path / "s", [*silent, loud])[BASE].in_silence
    zero = entry("alloc", BASE + 2048, 5, frames=[ZERO, MAIN])
    one = facts(tmp_path / "t", [*silent, loud, zero])[BASE]
    assert one.in_silence and one.freed_in_silence and not one.has_cpp
    with_cpp = entry("alloc", BASE + 4096, 5, frames=FORWARD)
    assert not facts(tmp_path / "u", [*silent, loud, zero, with_cpp])[BASE].in_silence


def test_a_silence_is_over_when_the_caller_of_backward_goes_on(tmp_path: Path) -> None:
    """And not when a hook runs on autograd's thread, or what backward itself makes first."""
    call, hook = frame("backward", f"{TORCH}/_tensor.py", 5), frame("hook", "/home/me/hooks.py", 3)
    trace = [
        entry("alloc", BASE, 5, frames=[call, MAIN]),
        entry("alloc", BASE + 1024, 5),
        entry("alloc", BASE + 2048, 5),
        entry("alloc", BASE + 3072, 5, frames=[hook]),
        *freed(BASE + 1024, 5),
        entry("alloc", BASE + 4096, 5, frames=[MODEL, {**MAIN, "line": 71}]),
        *freed(BASE + 2048, 5),
    ]
    found = facts(tmp_path / "s", trace, [segment(BASE, 8 << 10, [block(BASE + at, 5) for at in (0, 3072, 4096)])])
    assert [bool(found[BASE + at].outlives_silence) for at in range(0, 5120, 1024)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert not facts(tmp_path / "t", trace[1:], [segment(BASE, 8 << 10, [])])[BASE + 2048].outlives_silence


def test_two_steps_are_long(tmp_path: Path) -> None:
    trace, end = [entry("alloc", BASE, 5, frames=FORWARD)], [segment(BASE, 1 << 20, [block(BASE, 5)])]
    for number, frames in enumerate([IN_STEP, FORWARD, IN_STEP]):
        assert not facts(tmp_path / f"s{number}", trace, end)[BASE].is_long_lived
        trace.append(entry("alloc", BASE + 1024 * (number + 1), 5, frames=frames))
    assert facts(tmp_path / "end", trace, end)[BASE].is_long_lived


def test_an_empty_recording(tmp_path: Path) -> None:
    held = facts(tmp_path / "s", [], [segment(BASE, 4096, [block(BASE, 5)])])[BASE]
    assert held.is_before and held.is_at_end and not held.has_only_forward


def test_what_backward_makes_in_a_constructor_is_not_the_constructors(tmp_path: Path) -> None:
    """A program's `__init__` that trains a step: what the engine makes below it is no parameter of the object."""
    constructor = frame("__init__", "/home/me/model.py", 3)
    for name, frames, is_found in (("own", [MALLOC], True), ("engine", [MALLOC, ENGINE], False)):
        made = entry("alloc", BASE, 5, frames=[*frames, constructor, MAIN])
        found = facts(tmp_path / name, [made], [segment(BASE, 4096, [block(BASE, 5)])])[BASE]
        assert (found.constructor >= 0) == is_found
