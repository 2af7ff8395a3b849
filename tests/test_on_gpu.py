"""The whole run on a GPU: the peak is the allocator's own, and its history covers every block of the recording."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.fno_workload import FnoSettings, build_fno_workload
from tracer.allocator.reproduce import Reproduction
from tracer.answers.allocator.modelled import model_device
from tracer.answers.peak import Peak
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.kinds import Kind
from tracer.capture.device import devices
from tracer.capture.device.device_blocks import device_blocks
from tracer.commands.doctor import record, wrong_peak
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.sessions.output_files import OUTPUTS, write_outputs
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay
from tracer.workloads.module_steps import checkpoint_blocks
from tracer.workloads.step_options import StepOptions
from tracer.workloads.user_model import build_user_workload
from tracer.workloads.workload import Workload, train_step

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


DEVICE = torch.device("cuda", 0)
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class SmallTraining:
    """A training of a few MiB, of which every byte is known to the allocator that serves it."""

    name: str
    build: Callable[[torch.device], Workload]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # Around each step

    def made(self, device: torch.device) -> tuple[Workload, Step]:
        """Return the workload and a step of it."""
        workload = self.build(device)

        def step() -> None:
            with self.around():
                train_step(workload)

        return workload, step


def _shipped(model: str, device: torch.device, *model_args: str, **options: Any) -> Workload:
    step = StepOptions(batch_size=4, seed=0, **options)
    workload: Workload = build_user_workload(
        f"models.{model}:build", device=device, model_args=model_args, options=step, device_named=True
    )
    return workload


def _layer(device: torch.device, inputs: str, layer: str, *model_args: str, **options: Any) -> Workload:
    step = StepOptions(batch_size=4, seed=0, inputs=(inputs,), **options)
    workload: Workload = build_user_workload(
        f"torch.nn:{layer}", device=device, model_args=model_args, options=step, device_named=True
    )
    return workload


_ENCODER = ("d_model=64", "nhead=4", "batch_first=True")


def _encoder(device: torch.device, **options: Any) -> Workload:
    return _layer(device, "16x64", "TransformerEncoderLayer", *_ENCODER, **options)


def _checkpointed(device: torch.device) -> Workload:
    workload = _shipped("gpt", device, "n_layers=4")
    checkpoint_blocks(workload.model)
    return workload


PROGRAMS: tuple[SmallTraining, ...] = (
    SmallTraining("convolution network", partial(_shipped, "resnet")),
    SmallTraining("transformer", partial(_shipped, "gpt")),
    SmallTraining("LSTM", partial(_shipped, "lstm")),
    SmallTraining("FNO", lambda device: fno(device, "new_zeros")),
    SmallTraining("autocast", partial(_encoder, amp="bfloat16")),
    SmallTraining("checkpointed", _checkpointed),
    SmallTraining("foreach", partial(_encoder, optimizer="adamw:foreach=True")),
    SmallTraining("fused", partial(_encoder, optimizer="adamw:fused=True")),
    SmallTraining("FNO with torch_zeros", lambda device: fno(device, "torch_zeros")),
)
# Their kernels are chosen by the device.
NAMED_KERNELS = [
    SmallTraining(f"{backend.name} attention", partial(_encoder, amp="bfloat16"), partial(sdpa_kernel, backend))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
]


PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=2, num_repeats=1)
_NUM_PLAIN_STEPS = 3


def check(program: SmallTraining, device: torch.device) -> None:
    """Train a few steps alone and a few recorded ones; every figure that two sources have is the same."""
    workload, step = program.made(device)
    for _ in range(_NUM_PLAIN_STEPS):
        step()
        devices.synchronize(device)
    session = ProfileSession(workload.model, workload.optimizer, device=device, schedule=PLAN)
    counted = record(session, step, device)
    peak = session.findings.worst.peak
    assert list(wrong_peak(peak, counted, session.notes)) == []
    _check_kinds(workload, peak, device)
    reproduction = replayed(session)
    if reproduction is not None:
        assert reproduction.addresses.is_exact, reproduction.addresses


def release(device: torch.device) -> None:
    """Free what the program before has left, so that none is in the next one's reserved memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _check_kinds(workload: Workload, peak: Peak, device: torch.device) -> None:
    """Each kind has the bytes of the tensors that the program itself holds."""
    optimizer = workload.optimizer
    state = [value for values in optimizer.state.values() for value in values.values()] if optimizer is not None else []
    found = peak.by_category()
    for kind, tensors in ((Kind.PARAMETER, list(workload.model.parameters())), (Kind.OPTIMIZER_STATE, state)):
        wanted = bytes_of((each for each in tensors if isinstance(each, torch.Tensor)), device)
        assert found.get(kind.name, 0) == wanted, kind


def bytes_of(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Bytes of the blocks that tensors of a device lie in, by the allocator's own list of them."""
    sizes = device_blocks(device).sizes
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors if each.device == device
    }
    return sum(sizes.get(address, num_bytes) for address, num_bytes in storages.items())


def replayed(session: ProfileSession) -> Reproduction | None:
    """Decide again, with the model of the allocator, what the recorded one decided; None without a history."""
    columns = session.cycles.run_history.columns
    if columns is None or not columns.devices:
        return None
    (device,) = replay_snapshot(columns, device=session.device.index).devices
    modelled = model_device(device)
    return modelled.reproduction if modelled is not None else None


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_peak_is_the_allocators_and_its_history_has_every_block(program: SmallTraining) -> None:
    release(DEVICE)  # of tests before: their parameters would have rows, too
    check(program, DEVICE)


@pytest.mark.needs_values
@pytest.mark.parametrize("program", NAMED_KERNELS, ids=lambda program: program.name)
def test_each_kernel_of_attention_has_its_scratch_in_the_rows(program: SmallTraining) -> None:
    release(DEVICE)
    check(program, DEVICE)


@pytest.mark.needs_values
def test_the_profiler_has_kernels_whose_durations_agree_with_events() -> None:
    """Products of matrices that fill a GPU follow one another, and do not overlap on one stream."""
    x = torch.ones(4096, 4096, device=DEVICE)
    for _ in range(3):
        x @ x
    devices.synchronize(DEVICE)
    with torch.profiler.profile(activities=devices.profiler_activities(DEVICE)) as profiler:
        begin = devices.record_event(DEVICE)
        for _ in range(10):
            x @ x
        end = devices.record_event(DEVICE)
        devices.synchronize(DEVICE)
    times_us = [event.device_time_total for event in profiler.events() if not str(event.device_type).endswith("CPU")]
    assert 0.5 <= sum(times_us) / 1000 / begin.elapsed_time(end) <= 1.1


@pytest.mark.needs_values
def test_predictions_set_aside_what_the_context_takes() -> None:
    """700 MiB are set aside; 630 to 766 were measured on an H100, 916 with NCCL."""
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{devices.uuid_of(DEVICE)}")
    used = {one.pid: one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    if used.get(os.getpid()) is None:
        pytest.skip("this process is not here in NVML's list, as in a container")
    assert used[os.getpid()] - torch.cuda.memory_reserved(DEVICE) <= CONTEXT_BYTES + (300 << 20)


def test_a_replayed_graph_has_rows_that_sum_to_the_allocators_peak() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Sigmoid(), torch.nn.Linear(512, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.ones(2048, 512, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(DEVICE).wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    session = ProfileSession(model, optimizer, device=DEVICE, schedule=PLAN)
    counted = record(session, captured.replay, DEVICE)
    peak = session.findings.worst.peak
    assert sum(row.bytes for row in peak.rows) == peak.allocator_peak_bytes == counted


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
