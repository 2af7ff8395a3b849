"""Settings that are known to cost memory."""

from __future__ import annotations

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import explain


def test_settings_known_to_hurt_are_named_with_a_replay_that_shows_it() -> None:
    program = Program(0)
    for _ in range(3):  # segments of 66 become 96 MiB, and 100 become 128
        program.allocator.allocate(65 * MIB)
    program.allocator.free(program.allocator.allocate(100 * MIB))
    program.allocator.allocate(4 * MIB)  # which may not use what is free of the 100
    asked = ("expandable_segments:True,max_split_size_mb:32", "roundup_power2_divisions:2", "max_split_size_mb:32")
    found = explain(program.snapshot(), settings=asked).what_if
    assert found is not None
    both, rounded, split = found.rows[1:]
    assert "123548" in both.remarks[0] and "with expandable segments alone" in both.remarks[0]
    assert rounded.saved_bytes == -(3 * 30 + 28) * MIB and "larger than asked for" in rounded.remarks[0]
    assert split.saved_bytes == -20 * MIB and "leaves large free blocks" in split.remarks[0]
