"""Recordings replayed at their own settings: the model's own, cut ones, contradictory ones, and other people's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.allocator.recorded import GIB, MIB, Program, device_of, reproduced, without_head
from tests.skips import by_default
from tests.snapshot.dumps import REAL_DATA, entry, freed, snapshot
from tracer.allocator.reproduce import Matched
from tracer.allocator.settings import AllocatorSettings
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action
from tracer.snapshot.load import load_snapshot

# By address: nothing tells the ages of older segments.
OF_TORCH_2_12: dict[str, dict[str, Any]] = {
    "default": {},
    "streams that wait": {"streams": 3, "waits": True},
    "retries": {"capacity": 600 * MIB},
    "expandable": {"settings": AllocatorSettings(expandable_segments=True)},
    "expandable, streams": {"settings": AllocatorSettings(expandable_segments=True), "streams": 3},
}


def test_rules_of_another_torch_do_not_come_out() -> None:
    program = Program(2, torch_version=(2, 12)).run(3000)
    loaded = device_of(program.snapshot())
    assert reproduced(*loaded, torch_version=(2, 12))[0].is_exact
    other, _ = reproduced(*loaded, torch_version=(2, 13))
    assert not other.is_exact
    assert other.first_difference is not None


@pytest.mark.parametrize("seed", by_default(range(6), {0, 3}))
@pytest.mark.parametrize("options", OF_TORCH_2_12.values(), ids=OF_TORCH_2_12)
def test_what_was_there_before_is_rebuilt_from_the_end(options: dict[str, Any], seed: int) -> None:
    """The ring buffer lost the head: addresses, segments, peaks and the last blocks come out all the same."""
    program = Program(seed, torch_version=(2, 12), **options).run(1200)
    loaded, state = device_of(program.snapshot())
    checked = 0
    for percent in (7, 23, 41, 50, 66, 83, 95):
        cut = without_head(state, len(state.trace) * percent // 100)
        if not (cut.trace.action == Action.ALLOC).any():
            continue
        found, start = reproduced(loaded, cut, torch_version=(2, 12))
        assert found.is_exact or start.num_unclear_sizes, (percent, found)
        checked += found.is_exact
    assert checked >= 4


def test_the_first_block_put_behind_tells_where_a_block_ended() -> None:
    """A gap of more than 1 MiB: 11 MiB of 40 in use, 29 free; the next request is placed at the block's end."""
    program = Program(0)
    allocator = program.allocator
    allocator.free(allocator.allocate(40 * MIB))
    old = allocator.allocate(11 * MIB)
    allocator.history = []
    allocator.allocate(12 * MIB)
    allocator.free(old)
    found, start = reproduced(*device_of(program.snapshot()))
    assert (start.spans[0].lives[0][2], start.num_unclear_sizes) == (11 * MIB, 0)
    assert found.is_exact


def test_private_pools_come_out() -> None:
    program = Program(4, empties=0.0)
    allocator = program.allocator
    program.run(200)
    allocator.begin_allocate_to_pool((0, 1))
    captured = [allocator.allocate(int(size * MIB)) for size in (0.5, 3, 30, 12)]
    allocator.end_allocate_to_pool((0, 1))
    program.run(200)
    for block in captured:
        allocator.free(block)
    allocator.release_pool((0, 1))
    allocator.empty_cache()
    program.run(100)
    found, _ = reproduced(*device_of(program.snapshot()))
    assert found.is_exact, found
    assert found.releases.recorded > 4


def test_older_recordings_do_not_name_the_pool_of_an_entry() -> None:
    program = Program(4, empties=0.0)
    program.allocator.begin_allocate_to_pool((0, 1))
    program.run(300)
    objects = program.snapshot()
    for row in objects["device_traces"][0]:
        del row["pool_id"]
    assert reproduced(*device_of(objects))[0].is_exact


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    expandable=st.booleans(),
    capacity=st.none() | st.integers(300 * MIB, GIB),
    streams=st.integers(1, 3),
    waits=st.booleans(),
    version=st.sampled_from([(2, 12), (2, 15)]),
)
# A request fails, and what came back from another stream while it emptied the cache is large enough.
@example(seed=1986, expandable=False, capacity=300 * MIB, streams=1, waits=True, version=(2, 12))
@example(seed=2090322421, expandable=False, capacity=331 * MIB, streams=1, waits=True, version=(2, 12))
def test_any_modelled_recording_comes_out(
    seed: int, expandable: bool, capacity: int | None, streams: int, waits: bool, version: tuple[int, int]
) -> None:
    one = AllocatorSettings(expandable_segments=expandable)
    # A range of addresses that is taken for a request which the driver then refuses is in no recording.
    capacity = None if expandable else capacity
    program = Program(seed, one, capacity=capacity, streams=streams, waits=waits, torch_version=version).run(300)
    found, _ = reproduced(*device_of(program.snapshot()), torch_version=version, device_bytes=capacity)
    assert found.is_exact, found


# ---- what does not fit together --------------------------------------------------------------------------------------


def test_a_wrong_address_is_named() -> None:
    objects = Program(1).run(600).snapshot()
    rows = objects["device_traces"][0]
    at = next(i for i, row in enumerate(rows) if i > 300 and row["action"] == "free_completed") - 1
    address = rows[at]["addr"]
    made = max(i for i in range(at) if rows[i]["action"] == "alloc" and rows[i]["addr"] == address)
    for i in (made, at, at + 1):
        rows[i]["addr"] = address + 512 * 7
    found, _ = reproduced(*device_of(objects))
    assert found.first_difference == made
    assert found.addresses.equal == found.addresses.recorded - 1
    assert found.segments.is_exact


def test_a_missing_segment_is_counted() -> None:
    objects = Program(1).run(600).snapshot()
    rows = objects["device_traces"][0]
    at = [i for i, row in enumerate(rows) if row["action"] == "segment_alloc"][3]
    del rows[at]
    found, start = reproduced(*device_of(objects))
    assert not found.is_exact or start.reserved_bytes > 0
    assert found.num_extra + found.end_segments.recorded - found.end_segments.equal + start.reserved_bytes > 0


def test_another_allocators_recording_is_given_up() -> None:
    rows = []
    for number in range(3000):
        address = 512 * (number * 7919 % 100_003)
        rows += [entry("alloc", address, 512), *freed(address, 512)]
    found, _ = reproduced(*device_of(snapshot(rows)))
    assert found.given_up_at is not None
    assert found.given_up_at < 3100
    assert found.moments == ()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_recording_ends_in_counts(data: st.DataObject) -> None:
    """Entries in any order, at any address, of any size: no exception, and no more equal than recorded."""
    actions = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map"]
    actions += ["segment_unmap", "oom", "snapshot", "a word of torch 9"]
    row = st.builds(
        entry,
        st.sampled_from(actions),
        st.integers(0, 40).map(lambda number: number * 512 * 1024),
        st.sampled_from([0, 512, 700, MIB, 2 * MIB, 20 * MIB, 1 << 45]),
    )
    objects = snapshot(data.draw(st.lists(row, min_size=1, max_size=40)))
    for one in objects["device_traces"][0]:
        one["stream"] = data.draw(st.integers(0, 2))
    found, _ = reproduced(*device_of(objects))
    kinds = (found.addresses, found.segments, found.releases, found.failures, found.end_blocks)
    assert all(0 <= kind.equal <= kind.recorded for kind in kinds)


# ---- other people's recordings ---------------------------------------------------------------------------------------


def recordings() -> Iterator[Any]:
    folders = [REAL_DATA, REAL_DATA.parent / "recordings"]
    files = sorted(file for folder in folders for file in folder.glob("*.p*kl*") if file.stem != "old_history_format")
    if not files:
        yield pytest.param(None, id="none", marks=pytest.mark.skip(reason="the recordings are not here"))
    for file in files:
        yield pytest.param(file, id=file.stem)


def devices_of(file: Path) -> Iterator[tuple[Any, Any]]:
    try:
        loaded = load_snapshot(file, isolated=False)
    except SnapshotError as error:
        pytest.skip(f"cannot be read yet: {error}")
    for state in loaded.devices:
        if (state.trace.action == Action.ALLOC).any():
            yield loaded, state


@pytest.mark.parametrize("file", list(recordings()))
def test_every_decision_of_a_real_allocator_comes_out(file: Path) -> None:
    for loaded, state in devices_of(file):
        found, _ = reproduced(loaded, state, torch_version=(2, 12))
        assert found.is_exact, found


@pytest.mark.parametrize("file", list(recordings()))
def test_also_after_its_head_is_lost(file: Path) -> None:
    for loaded, state in devices_of(file):
        for percent in (7, 41, 66):
            cut = without_head(state, len(state.trace) * percent // 100)
            if (cut.trace.action == Action.ALLOC).any():
                found, _ = reproduced(loaded, cut, torch_version=(2, 12))
                assert found.is_exact, (state.device, percent, found)


def test_the_counts_of_a_real_recording() -> None:
    file = REAL_DATA / "train_full_step_50GiB.pickle"
    if not file.is_file():
        pytest.skip("the recordings are not here")
    ((loaded, state),) = devices_of(file)
    found, _ = reproduced(loaded, state, torch_version=(2, 12))
    assert (found.addresses, found.segments) == (Matched(6771, 6771), Matched(783, 783))
