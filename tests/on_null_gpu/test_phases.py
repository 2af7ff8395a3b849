"""Phases of a program on a device: what is held in each, and that the program does not notice."""

from __future__ import annotations

from tests.on_null_gpu import jobs_phases
from tests.on_null_gpu.jobs_phases import MIB
from tests.truth.isolate import Elsewhere
from tracer.capture.device.phase_memory import BETWEEN
from tracer.null_gpu.cards import CONTEXT_BYTES


def test_each_phase_has_the_peaks_of_its_own_times(elsewhere: Elsewhere) -> None:
    found, most_bytes = elsewhere(jobs_phases.alternate)
    phases = {phase.name: phase for phase in found.phases}
    assert [*phases] == ["rollout", "generate", "train", BETWEEN]
    rollout, generate, train, between = phases.values()
    assert generate.allocated_bytes == rollout.allocated_bytes and generate.held_bytes == rollout.held_bytes
    assert generate.end_bytes > rollout.end_bytes  # its block is freed in the phase around it
    assert rollout.allocated_bytes == most_bytes == (64 + 512) * MIB
    assert train.allocated_bytes == (64 + 128) * MIB
    assert between.allocated_bytes == 64 * MIB
    # The training step's block is cached when the rollout begins.
    assert rollout.held_bytes == CONTEXT_BYTES + (64 + 128 + 512) * MIB
    assert rollout.end_bytes == train.begin_bytes == CONTEXT_BYTES + 64 * MIB
    assert train.held_bytes == train.end_bytes == CONTEXT_BYTES + (64 + 128) * MIB
    for phase in found.phases:
        parts = phase.allocated_bytes + phase.cached_bytes + phase.outside_bytes - phase.unmapped_bytes
        assert parts == phase.held_bytes and not phase.unmapped_bytes
    assert rollout.num_times == jobs_phases.NUM_STEPS  # of which the last ones are not all looked at


def test_a_program_that_resets_torchs_peaks_finds_them_so_and_its_phases_keep_theirs(elsewhere: Elsewhere) -> None:
    phase, first_bytes, later_bytes = elsewhere(jobs_phases.reset_within)
    assert (phase.name, phase.allocated_bytes) == ("train", 256 * MIB)
    assert first_bytes == later_bytes == 32 * MIB


def test_a_name_for_each_step_costs_no_other_phase_its_place(elsewhere: Elsewhere) -> None:
    found, entered = elsewhere(jobs_phases.name_each_step)
    assert [phase.name for phase in found.phases] == ["step 1", "train", "step 2", "step 3", BETWEEN]
    train = found.phases[1]
    # Of 40 times the first 32 are looked at.
    assert (train.num_times, train.allocated_bytes) == (jobs_phases.NUM_STEPS, 32 * MIB)
    assert entered[-4:] == ["step 40", "train", "step 40", ""]


def test_what_is_outside_of_torch_stays_while_an_engine_sleeps(elsewhere: Elsewhere) -> None:
    sleep, train = elsewhere(jobs_phases.sleep)
    assert (sleep.outside_bytes, sleep.unmapped_bytes, sleep.held_bytes) == (10 * MIB, 0, 74 * MIB)
    assert (train.outside_bytes, train.unmapped_bytes, train.held_bytes) == (10 * MIB, 60 * MIB, 14 * MIB)


def test_a_phase_has_no_peak_of_a_device_from_before_it_moved_there(elsewhere: Elsewhere) -> None:
    (second,) = elsewhere(jobs_phases.change_device)
    assert (second.device, second.allocated_bytes, second.cached_bytes) == (1, 0, 256 * MIB)


def test_regions_of_torch_itself_are_no_phases(elsewhere: Elsewhere) -> None:
    assert elsewhere(jobs_phases.train_and_fork) == [BETWEEN]
