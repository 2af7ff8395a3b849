"""Memory of phases: the largest of each part, which sum to what is held of the device."""

from __future__ import annotations

from tracer.capture.device.phase_memory import MemoryLevels, PhaseMemory


def test_memory_reserved_between_two_readings_was_on_the_device() -> None:
    """10 of 12 are torch's at both ends, and 15 were reserved in between: 17 were held, with 2 outside of torch."""
    phase = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(4, 10, 12, 2), MemoryLevels(6, 10, 12, 2)], peak=MemoryLevels(9, 15)
    )
    assert (phase.allocated_bytes, phase.cached_bytes, phase.outside_bytes, phase.held_bytes) == (9, 6, 2, 17)
    assert (phase.begin_bytes, phase.end_bytes, phase.unmapped_bytes) == (12, 12, 0)


def test_memory_of_an_engine_that_sleeps_is_reserved_and_not_on_the_device() -> None:
    """An engine of 50 sleeps at both ends, and is awake in between, when 62 are held."""
    asleep, awake = MemoryLevels(55, 60, 12, 2), MemoryLevels(55, 60, 62, 2)
    assert PhaseMemory.of_visit("train", 0, [asleep, asleep], peak=MemoryLevels(55, 60)).unmapped_bytes == 50
    phase = PhaseMemory.of_visit("rollout", 0, [asleep, awake, asleep], peak=MemoryLevels(55, 60))
    assert (phase.held_bytes, phase.outside_bytes, phase.unmapped_bytes) == (62, 2, 0)


def test_of_several_times_each_part_is_the_largest_and_the_ends_are_of_the_last() -> None:
    first = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(1, 2, 3, 1), MemoryLevels(8, 9, 10, 1)], peak=MemoryLevels(8, 9)
    )
    last = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(4, 6, 8, 2), MemoryLevels(3, 6, 8, 2)], peak=MemoryLevels(5, 6)
    )
    both = first.followed_by(last)
    assert (both.num_times, both.allocated_bytes, both.reserved_bytes, both.held_bytes) == (2, 8, 9, 10)
    assert (both.outside_bytes, both.begin_bytes, both.end_bytes) == (2, 8, 8)
