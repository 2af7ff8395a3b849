"""Programs whose phases take turns on a device, and what a ledger has of them."""

from __future__ import annotations

import os
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import record_function

from tracer.capture.device import phase_ledger
from tracer.capture.device.phase_ledger import PhaseLedger
from tracer.capture.device.phase_memory import PhaseMemory, ProcessPhases
from tracer.capture.torch_private.torch_profiler import OpenRegions

MIB = 1 << 20
NUM_STEPS = 40


def alternate() -> tuple[ProcessPhases, int]:
    """64 MiB stay; a rollout takes 512 MiB and gives them back, and a training step 128 MiB, which stay in the cache.

    Returns:
        The phases, and the program's own `max_memory_allocated`.
    """
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
    return ledger.phases, most_bytes


def reset_within() -> tuple[PhaseMemory, int, int]:
    """The program resets torch's peak behind 256 MiB of a phase, and allocates 32 MiB.

    Returns:
        The phase, and the program's own peaks: after these, and after a later phase of 16 MiB.
    """
    with PhaseLedger("resets.py") as ledger:
        with record_function("train"):
            _block(256)
            torch.cuda.reset_peak_memory_stats()
            _block(32)
            first_bytes = torch.cuda.max_memory_allocated()
        with record_function("evaluate"):
            _block(16)
        later_bytes = torch.accelerator.max_memory_allocated()
    return ledger.phases.phases[0], first_bytes, later_bytes


def name_each_step() -> tuple[ProcessPhases, list[str]]:
    """Each step has a name of its own, of which three are followed, and trains in it; it takes 1 MiB more each time.

    Returns:
        The phases, and the names of the innermost ones as they were entered and left.
    """
    entered: list[str] = []
    with patch.object(phase_ledger, "_MOST_PHASES", 4), PhaseLedger("steps.py", entered=entered.append) as ledger:
        for number in range(1, NUM_STEPS + 1):
            with record_function(f"step {number}"), record_function("train"):
                _block(number)
    return ledger.phases, entered


def sleep() -> tuple[PhaseMemory, PhaseMemory]:
    """An engine reserves 64 MiB and sleeps, when 60 MiB of them are not on the device; 10 MiB outside of torch stay.

    Returns:
        The phase in which it sleeps, and that of a training step meanwhile.
    """
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
    asleep, _, train = ledger.phases.phases[:3]
    return asleep, train


def change_device() -> list[PhaseMemory]:
    """A block of 256 MiB on the second device comes and goes, and a phase after that ends on this device."""
    with PhaseLedger("moves.py") as ledger:
        with record_function("first"), torch.cuda.device(1):
            _block(256)
        with record_function("second"):
            torch.cuda.set_device(1)
    torch.cuda.set_device(0)
    return [phase for phase in ledger.phases.phases if phase.name == "second"]


def train_and_fork() -> list[str]:
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
    return [phase.name for phase in ledger.phases.phases]


def _block(size_mib: int) -> torch.Tensor:
    return torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda")
