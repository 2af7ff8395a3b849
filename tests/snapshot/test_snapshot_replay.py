from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.snapshot.allocator_model import AllocatorModel
from tests.snapshot.dumps import block, each_real_file, entry, freed, naive_peaks, read_plain, segment, snapshot, write
from tests.snapshot.explained import allocated_after
from tracer.allocator.fragmentation import fragmentation_after
from tracer.block_sizes import recorded_divisions, round_sizes
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import BEFORE, Oddities, Replay, replay

BASE = 1 << 32


def replayed(path: Path, objects: Any) -> tuple[DeviceState, Replay]:
    (state,) = load_snapshot(write(path, objects), isolated=False).devices
    return state, replay(state, {})


def test_three_events_in_one_microsecond_peak_at_the_first(tmp_path: Path) -> None:
    # alloc 100, free 100, alloc 50, all at time 7: in use 100, 0, 50. Sorted by time with either rule for ties it
    # would be 50 or 150.
    trace = [entry("alloc", BASE, 100, time_us=7), *freed(BASE, 100, time_us=7), entry("alloc", BASE, 50, time_us=7)]
    _, found = replayed(tmp_path / "s", snapshot(trace, [segment(BASE, 2048, [block(BASE, 50)])]))
    assert found.requested_bytes.tolist() == [0, 100, 100, 0, 50]
    assert found.peak_entry == 0


def test_memory_is_free_again_when_the_free_is_completed(tmp_path: Path) -> None:
    requested, completed = freed(BASE, 100)
    trace = [entry("alloc", BASE, 100), requested, entry("alloc", BASE + 512, 10), completed]
    _, found = replayed(tmp_path / "s", snapshot(trace, [segment(BASE, 2048, [block(BASE + 512, 10)])]))
    assert found.requested_bytes.tolist() == [0, 100, 100, 110, 10]
    assert found.peak_entry == 2


def test_a_note_on_a_live_block_changes_nothing(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 100), entry("annotate", BASE, 100), *freed(BASE, 100)]
    _, found = replayed(tmp_path / "s", snapshot(trace))
    assert found.requested_bytes.tolist() == [0, 100, 100, 100, 0]
    assert found.oddities == Oddities()


def test_what_was_there_before_is_told_by_the_end_and_by_frees(tmp_path: Path) -> None:
    # 30 bytes stay all the time; 40 bytes are freed in the recording; so 70 were there at the start.
    _, found = replayed(tmp_path / "s", snapshot(freed(BASE, 40), [segment(BASE, 2048, [block(BASE + 512, 30)])]))
    assert found.requested_bytes.tolist() == [70, 70, 30]
    assert found.peak_entry == BEFORE
    assert sorted(found.lives.requested_bytes[found.lives.alive_after(BEFORE)].tolist()) == [30, 40]


def test_reserved_is_walked_back_from_the_segments(tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", BASE, 1000),
        entry("segment_map", BASE + 4096, 200),
        entry("segment_unmap", BASE + 4096, 150),
        entry("segment_free", BASE + 8192, 70),
    ]
    _, found = replayed(tmp_path / "s", snapshot(trace, [segment(BASE, 1000, []), segment(BASE + 4246, 50, [])]))
    assert found.reserved_bytes.tolist() == [70, 1070, 1270, 1120, 1050]


def test_allocated_takes_the_size_of_a_block_that_is_still_there(tmp_path: Path) -> None:
    # The allocator did not split a hole of 4096 for 100; of the freed block only the request, 700, is known.
    large = {**block(BASE, 100), "size": 4096}
    trace = [entry("alloc", BASE, 100), entry("alloc", BASE + 4096, 700), *freed(BASE + 4096, 700)]
    _, found = replayed(tmp_path / "s", snapshot(trace, [segment(BASE, 8192, [large])]))
    assert [allocated_after(found, i) for i in range(-1, 4)] == [0, 4096, 4096 + 1024, 4096 + 1024, 4096]


def test_odd_recordings_are_counted_and_never_fail(tmp_path: Path) -> None:
    double_alloc = [entry("alloc", BASE, 10), entry("alloc", BASE, 20)]
    end = [segment(BASE, 2048, [block(BASE, 20)])]
    _, found = replayed(tmp_path / "double", snapshot(double_alloc, end))
    assert (found.oddities.num_missing_frees, found.oddities.missing_free_bytes) == (1, 10)
    assert found.requested_bytes.tolist() == [0, 0, 20]

    _, found = replayed(tmp_path / "double_free", snapshot([*freed(BASE, 10), *freed(BASE, 20)]))
    assert found.oddities.num_missing_allocs == 1
    assert found.requested_bytes.tolist() == [10, 10, 20, 20, 0]

    _, found = replayed(tmp_path / "unborn", snapshot(freed(BASE, 10), end))
    assert found.oddities.num_missing_allocs == 1
    assert found.requested_bytes.tolist() == [10, 10, 20]

    _, found = replayed(tmp_path / "sizes", snapshot([entry("alloc", BASE, 10), *freed(BASE, 30)]))
    assert found.oddities.num_size_mismatches == 1
    assert found.requested_bytes.tolist() == [0, 30, 30, 0]


@pytest.mark.parametrize(
    "skipped", [("free_completed",), ("alloc",), ("free_requested", "free_completed"), ("free_requested",)]
)
def test_skipped_actions_are_noticed(tmp_path: Path, skipped: tuple[str, ...]) -> None:
    trace = [entry("alloc", BASE, 10), *freed(BASE, 10), entry("alloc", BASE, 20), *freed(BASE, 20)]
    _, found = replayed(tmp_path / "s", snapshot([row for row in trace if row["action"] not in skipped]))
    odd = found.oddities
    assert odd.frees_by_request == (skipped == ("free_completed",))
    assert odd.has_no_allocs == (skipped == ("alloc",))
    assert odd.num_missing_frees == (2 if len(skipped) == 2 else 0)
    assert found.requested_bytes.max() == (0 if len(skipped) == 2 else 20)
    assert found.requested_bytes[-1] == 0


def test_two_live_blocks_at_one_address_contradict_each_other(tmp_path: Path) -> None:
    twice = segment(BASE, 2048, [block(BASE, 1)])
    with pytest.raises(SnapshotError, match="two live blocks"):
        replayed(tmp_path / "s", snapshot([], [twice, twice]))


def test_rounding_follows_the_allocator() -> None:
    requested = np.array([1, 512, 513, 1 << 20, (1 << 20) + 1, 1_300_000_000], dtype=np.int64)
    plain = [512, 512, 1024, 1 << 20, (1 << 20) + 512, -(-1_300_000_000 // 512) * 512]
    assert round_sizes(requested).tolist() == plain
    # 4 divisions between powers of two: 1 MiB + 1 B becomes 1.25 MiB, 1.3e9 B (above 1 GiB) becomes 1.25 GiB.
    divisions = recorded_divisions({"roundup_power2_divisions": {str(1 << i): 4 for i in range(16)}})
    assert round_sizes(requested, divisions).tolist() == [512, 512, 1024, 1 << 20, 1_310_720, 1_342_177_280]


@st.composite
def histories(draw: st.DrawFn) -> tuple[AllocatorModel, int]:
    """A model that was driven at random, and how many of its newest entries the ring buffer kept."""
    model = AllocatorModel()
    live: list[int] = []
    pending: list[int] = []
    num_steps = draw(st.integers(0, 60))
    start = draw(st.integers(0, num_steps))
    for number in range(num_steps + 1):
        if number == start:
            model.start_recording()
        tick = draw(st.sampled_from([0, 0, 1]))
        what = draw(st.sampled_from(["alloc", "alloc", "alloc", "free", "request", "complete", "empty"]))
        if what == "alloc":
            live.append(model.alloc(draw(st.integers(1, 5000) | st.integers(1, 100_000)), tick=tick))
        elif what == "empty":
            model.empty_cache(tick=tick)
        elif what in ("free", "request") and live:
            address = live.pop(draw(st.integers(0, len(live) - 1)))
            model.request_free(address, tick=tick)
            if what == "request":
                pending.append(address)
            else:
                model.complete_free(address, tick=tick)
        elif what == "complete" and pending:
            model.complete_free(pending.pop(draw(st.integers(0, len(pending) - 1))), tick=tick)
    return model, draw(st.integers(0, len(model.trace)))


@given(history=histories())
def test_a_replay_agrees_with_the_allocators_own_books(tmp_path_factory: pytest.TempPathFactory, history: Any) -> None:
    model, keep = history
    objects = model.dump(keep=keep)
    loaded = load_snapshot(write(tmp_path_factory.mktemp("model") / "s", objects), isolated=False)
    if not loaded.devices:
        assert not model.segments and not objects["device_traces"][0]
        return
    (state,) = loaded.devices
    found = replay(state, loaded.settings)
    books = model.curve[len(model.curve) - 1 - keep :]
    assert found.requested_bytes.tolist() == [requested for requested, _, _ in books]
    assert found.reserved_bytes.tolist() == [reserved for _, _, reserved in books]
    allocated = [allocated_after(found, i) for i in range(-1, keep)]
    assert allocated == [allocated for _, allocated, _ in books]
    assert naive_peaks(objects) == {0: max(requested for requested, _, _ in books)}
    check_laws(state, found)
    assert fragmentation_after(state, found, keep - 1).largest_free_bytes == model.largest_hole()


def check_laws(state: DeviceState, found: Replay) -> None:
    """What must hold of every replay."""
    curve, lives = found.requested_bytes, found.lives
    live_blocks = state.blocks.requested_size[state.blocks.is_live]
    assert curve[-1] == live_blocks.sum()
    assert found.reserved_bytes[-1] == state.segments.total_size.sum()
    assert (curve >= 0).all()
    assert (lives.begin < lives.end).all()
    assert (lives.free_entry <= lives.end).all()
    for at in {found.peak_entry, BEFORE, len(state.trace) - 1, len(state.trace) // 2 - 1}:
        assert lives.requested_bytes[lives.alive_after(at)].sum() == curve[at + 1]
    at_failures = [entry for entry in state.trace.where(Action.OOM).tolist() if curve[entry + 1] == curve.max()]
    assert found.peak_entry == (at_failures[-1] if at_failures else curve.argmax() - 1)


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["alloc", "free_requested", "free_completed", "oom", "segment_alloc", "snapshot"]),
            st.integers(0, 5),
            st.integers(0, 3000),
        ),
        max_size=40,
    ),
    live=st.dictionaries(st.integers(0, 5), st.integers(1, 3000)),
)
def test_any_entries_at_all_keep_the_laws(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int]], live: dict[int, int]
) -> None:
    blocks = [block(BASE + 4096 * slot, size) for slot, size in sorted(live.items())]
    trace = [entry(action, BASE + 4096 * slot, size) for action, slot, size in rows]
    objects = snapshot(trace, [segment(BASE, 6 * 4096, blocks)])
    state, found = replayed(tmp_path_factory.mktemp("any") / "s", objects)
    check_laws(state, found)
    if any(row[0] == "free_completed" for row in rows) or not any(row[0] == "free_requested" for row in rows):
        assert found.requested_bytes.max() == naive_peaks(objects)[0]


@each_real_file
def test_real_recordings_peak_where_a_naive_replay_says(path: Path) -> None:
    loaded: Snapshot = load_snapshot(path, isolated=False)
    found = {state.device: replay(state, loaded.settings) for state in loaded.devices}
    assert {device: int(one.requested_bytes.max()) for device, one in found.items()} == naive_peaks(read_plain(path))
    for state in loaded.devices:
        check_laws(state, found[state.device])
