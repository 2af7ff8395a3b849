"""Failed requests that fail again only beside what the recording began with."""

from __future__ import annotations

import numpy as np
import pytest

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import full
from tracer.analysis.snapshots.changed_requests import with_earlier_frees, without_blocks
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.modelled import Modelled, model_device
from tracer.snapshot.load import snapshot_in_memory


def modelled(program: Program, num_last: int) -> Modelled:
    """The model of a recording that has the last entries alone."""
    num_entries = len(program.snapshot()["device_traces"][0])
    replayed = replay_snapshot(snapshot_in_memory(program.snapshot(keep_from=num_entries - num_last)))
    (device,) = replayed.devices
    found = model_device(device)
    assert found is not None
    return found


def test_pieces_from_before_the_recording_are_in_the_way_again() -> None:
    """Three segments of 100 MiB, 60 of each in use before it; of 150 MiB, asked for in it, there are not 100 left."""
    clean = modelled(full(), 1)
    assert clean.baseline.unserved == () and not clean.is_from_start
    found = clean.as_it_failed
    assert found.is_from_start and found.baseline.unserved == (0,)
    assert (found.baseline.allocated_peak_bytes, found.baseline.reserved_peak_bytes) == (180 * MIB, 300 * MIB)
    # 100 MiB of 400 are free. One segment is given back whole once nothing is in it, and then there are 200.
    rows = found.history.first_lives[:1]
    assert without_blocks(found, rows).outcome(found).unserved == ()
    assert with_earlier_frees(found, rows, np.zeros(1, np.int64)).outcome(found).unserved == ()
    assert without_blocks(found, rows[:0]).outcome(found).unserved == (0,)


def test_a_recording_that_is_whole_begins_in_a_clean_allocator() -> None:
    whole = modelled(full(), len(full().snapshot()["device_traces"][0]))
    assert whole.baseline.unserved and whole.as_it_failed is whole


@pytest.mark.parametrize("seed", [4, 8, 10, 14])
def test_a_cut_recording_fails_as_it_did(seed: int) -> None:
    program = Program(seed, capacity=700 * MIB, streams=1 + seed % 2, waits=seed % 3 == 0).run(700)
    actions = [entry["action"] for entry in program.snapshot()["device_traces"][0]]
    first = max(at for at, action in enumerate(actions) if action == "oom") - 60
    found = modelled(program, len(actions) - first)
    assert found.baseline.unserved == (), "a clean allocator has room"
    found = found.as_it_failed
    assert found.baseline.failure is None and found.baseline.unserved == (60,)
    assert found.baseline.reserved_peak_bytes == found.reproduction.recorded_peak_bytes
