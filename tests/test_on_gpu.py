"""The whole run on a GPU: the peak is the allocator's own, and its history covers every block of the recording."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from models.fno_workload import FnoSettings, build_fno_workload
from tracer.analysis.kinds import Kind
from tracer.results.doctor import Status
from tracer.sessions.doctor.checks import DEVICE_CHECKS, DeviceCheck
from tracer.sessions.doctor.trained import PROGRAMS, DoctorTraining, let_go, train
from tracer.sessions.output_files import OUTPUTS, write_outputs
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Profiler clears events")]


def fno(device: torch.device, spectrum: Any) -> Any:
    settings = FnoSettings(batch_size=4, hidden_channels=16, data_size=32, n_modes=8, n_layers=2, spectrum=spectrum)
    return build_fno_workload(settings, device=device)


class Changed:
    """A workload with some of its methods exchanged."""

    def __init__(self, workload: Any, **methods: Any) -> None:
        self._workload = workload
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


# Those of `doctor`; what compiles belongs in a process of its own, and a kernel that is named on a device that has it.
PROGRAMS_HERE = [
    *(program for program in PROGRAMS if program.where == "everywhere"),
    DoctorTraining("FNO with torch_zeros", lambda device: fno(device, "torch_zeros")),
]
OTHER_CHECKS = [check for check in DEVICE_CHECKS if check.name not in {program.name for program in PROGRAMS}]


@pytest.mark.parametrize("program", PROGRAMS_HERE, ids=lambda program: program.name)
def test_the_peak_is_the_allocators_and_its_history_has_every_block(program: DoctorTraining) -> None:
    let_go(torch.device("cuda", 0))  # of tests before: their parameters would have rows, too
    outcome = train(program, torch.device("cuda", 0))
    assert outcome.status is Status.PASS, outcome.sentence


@pytest.mark.parametrize("check", OTHER_CHECKS, ids=lambda check: check.name)
def test_every_other_check_of_doctor_finds_all_well_or_says_why_it_cannot_ask(check: DeviceCheck) -> None:
    outcome = check.ask(torch.device("cuda", 0))
    assert outcome.status is not Status.FAIL, outcome.sentence


def test_all_files_are_written(tmp_path: Path) -> None:
    workload = fno(torch.device("cuda", 0), "new_zeros")
    results = run_profile(workload, schedule=Schedule(1, 1, 2, 1), timing=False)
    written = list(write_outputs(results, tmp_path))
    assert [str(output.error) for output in written if output.error is not None] == []
    # Nobody asked for a timing pass, nor for what is written on request; times are there where something is computed.
    left_out = {"cuda-timing", *(output.name for output in OUTPUTS if not output.file.switch_help)}
    left_out |= {"run-time-report"} if not results.computed else set()
    assert {output.output.name for output in written} == {output.name for output in OUTPUTS} - left_out
    snapshot = load_snapshot(tmp_path / "memory_snapshot.pkl")
    (state,) = (state for state in snapshot.devices if state.device == 0)
    assert (state.trace.category >= 0).any()
    assert replay(state, snapshot.settings).requested_bytes.max() > 0
    with (tmp_path / "memory_snapshot.pkl").open("rb") as file:
        assert pickle.load(file)["device_traces"]


def test_a_first_step_that_does_not_fit_is_explained() -> None:
    device = torch.device("cuda", 0)
    workload = fno(device, "new_zeros")

    def backward(loss: Any) -> None:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)

    results = run_profile(Changed(workload, backward=backward), schedule=Schedule(1, 1, 1, 1), timing=False)
    assert results.findings is None
    failed = results.failed_allocation
    assert failed is not None
    assert failed.event.asked_bytes >= 1 << 50
    assert failed.event.site.file == __file__
    assert sum(group.bytes for group in failed.event.groups) == failed.event.requested_bytes
    assert Kind.PARAMETER in {group.kind for group in failed.event.groups}
