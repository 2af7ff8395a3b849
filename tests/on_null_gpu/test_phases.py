"""Phases of a program on a device: what is held in each, and that the program does not notice."""

from __future__ import annotations

import os
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import record_function

from tests.truth.isolate import runs_elsewhere
from tracer.capture.device import phase_ledger
from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.capture.device.phase_memory import BETWEEN
from tracer.capture.torch_private.torch_profiler import OpenRegions
from tracer.null_gpu.cards import CONTEXT_BYTES

MIB = 1 << 20
NUM_STEPS = 40


def _block(size_mib: int) -> torch.Tensor:
    return torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda")


@runs_elsewhere
def test_each_phase_has_the_peaks_of_its_own_times() -> None:
    """64 MiB stay; a rollout takes 512 MiB and gives them back, a training step 128 MiB, which stay in the cache."""
    torch.cuda.reset_peak_memory_stats()
    with PhaseLedger("alternate.py") as ledger:
        weights = _block(64)
        for _ in range(NUM_STEPS):
            with record_function("rollout"):
                with record_function("generate"):
                    cache = _block(512)
                del cache
                torch.cuda.empty_cache()
            with record_function("train"):
                _block(128)
        most_bytes = torch.cuda.max_memory_allocated()
        del weights
    phases = {phase.name: phase for phase in ledger.phases.phases}
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
    for phase in ledger.phases.phases:
        parts = phase.allocated_bytes + phase.cached_bytes + phase.outside_bytes - phase.unmapped_bytes
        assert parts == phase.held_bytes and not phase.unmapped_bytes
    assert rollout.num_times == NUM_STEPS  # of which the last ones are not all looked at


@runs_elsewhere
def test_a_program_that_resets_torchs_peaks_finds_them_so_and_its_phases_keep_theirs() -> None:
    """Behind 256 MiB of a phase, which then allocates 32 MiB; a later phase allocates 16."""
    with PhaseLedger("resets.py") as ledger:
        with record_function("train"):
            _block(256)
            torch.cuda.reset_peak_memory_stats()
            _block(32)
            first_bytes = torch.cuda.max_memory_allocated()
        with record_function("evaluate"):
            _block(16)
        later_bytes = torch.accelerator.max_memory_allocated()
    phase = ledger.phases.phases[0]
    assert (phase.name, phase.allocated_bytes) == ("train", 256 * MIB)
    assert first_bytes == later_bytes == 32 * MIB


@runs_elsewhere
def test_a_name_for_each_step_costs_no_other_phase_its_place() -> None:
    """Each step has a name of its own, of which three are followed, and trains in it; it takes 1 MiB more each time."""
    entered: list[str] = []
    with patch.object(phase_ledger, "_MOST_PHASES", 4), PhaseLedger("steps.py", entered=entered.append) as ledger:
        for number in range(1, NUM_STEPS + 1):
            with record_function(f"step {number}"), record_function("train"):
                _block(number)
    found = ledger.phases
    assert [phase.name for phase in found.phases] == ["step 1", "train", "step 2", "step 3", BETWEEN]
    train = found.phases[1]
    # Of 40 times the first 32 are looked at.
    assert (train.num_times, train.allocated_bytes) == (NUM_STEPS, 32 * MIB)
    assert entered[-4:] == ["step 40", "train", "step 40", ""]


@runs_elsewhere
def test_what_is_outside_of_torch_stays_while_an_engine_sleeps() -> None:
    """An engine reserves 64 MiB and sleeps, when 60 MiB of them are not on the device; 10 MiB outside of torch stay."""
    mapped_bytes = 0
    with PhaseLedger("colocated.py", held_bytes=lambda _: mapped_bytes + 10 * MIB) as ledger:
        with record_function("sleep"):
            weights = _block(64)
            mapped_bytes = 64 * MIB
            with record_function("still awake"):
                pass
            mapped_bytes = 4 * MIB
        with record_function("train"):
            pass
        del weights
    sleep, _, train = ledger.phases.phases[:3]
    assert (sleep.outside_bytes, sleep.unmapped_bytes, sleep.held_bytes) == (10 * MIB, 0, 74 * MIB)
    assert (train.outside_bytes, train.unmapped_bytes, train.held_bytes) == (10 * MIB, 60 * MIB, 14 * MIB)


@runs_elsewhere
def test_a_phase_has_no_peak_of_a_device_from_before_it_moved_there() -> None:
    """A block of 256 MiB on the second device comes and goes, and a phase after that ends on this device."""
    with PhaseLedger("moves.py") as ledger:
        with record_function("first"), torch.cuda.device(1):
            _block(256)
        with record_function("second"):
            torch.cuda.set_device(1)
    torch.cuda.set_device(0)
    (second,) = [phase for phase in ledger.phases.phases if phase.name == "second"]
    assert (second.device, second.allocated_bytes, second.cached_bytes) == (1, 0, 256 * MIB)


@runs_elsewhere
def test_regions_of_torch_itself_are_no_phases() -> None:
    """Torch opens regions around an optimizer's step, which others look at, too; a forked child has none."""
    model = nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    num_ended = 0

    def count(ledger: PhaseLedger) -> None:
        nonlocal num_ended
        num_ended += 1

    with PhaseLedger("trains.py", ended=count) as ledger:
        regions = OpenRegions()
        regions.start()
        model(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
        regions.stop()
        if not (child := os.fork()):
            with record_function("of the child"):
                pass
            os._exit(num_ended)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [phase.name for phase in ledger.phases.phases] == [BETWEEN]
