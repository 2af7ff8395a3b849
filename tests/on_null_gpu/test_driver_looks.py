"""What the driver counts beside torch's allocator, where the null GPU's driver is told to take memory."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.truth.isolate import runs_elsewhere
from tracer.answers.beside_torch import FIRST
from tracer.capture.driver_looks import DriverLedger
from tracer.capture.run_facts import OtherProcess
from tracer.exporters.recording_file.kept_run_file import load_kept_run, save_kept_run
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import profile_training

MIB = 1 << 20
_TAKEN = {"cublas": 32 * MIB, "cudnn": 64 * MIB, "cufft": 16 * MIB, "cusolver": 8 * MIB, "graph": 2 * MIB}
_OF_BACKWARD = "; ".join(
    f"first recorded call of {library}, {node}Backward0"
    for library, node in (("cuBLAS", "Addmm"), ("cuDNN", "Convolution"))
)


class Spectrum(nn.Module):
    """The size of a transform."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x).abs()


class Kernel(nn.Module):
    """The same, behind a kernel that the first call loads."""

    is_loaded = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_loaded:
            ctypes.CDLL(None).cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b"image")
        self.is_loaded = True
        return x


class Mean(nn.Module):
    """Of each channel, through a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.conv(x).mean((2, 3))
        return mean


class Factor(nn.Module):
    """A factor is added."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.linalg.cholesky(torch.eye(4, device=x.device)).sum()


def _capture(batch: Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch * 2
    return graph


@runs_elsewhere
def test_each_rise_has_its_call_and_line_and_all_sum_to_the_drivers_count() -> None:
    os.environ["NULL_GPU_TAKES"] = ";".join(f"{place}={size}" for place, size in _TAKEN.items())
    model = nn.Sequential(Spectrum(), Mean(), nn.Linear(8, 2), Factor()).cuda()
    batch, folder = torch.randn(4, 3, 16, 16, device="cuda"), Path(tempfile.mkdtemp())
    with profile_training(model, save_dir=folder, schedule=Schedule(0, 0, 6, 1), keep_recording=True) as session:
        for step in range(6):
            loss = model[: step + 1](batch).sum()  # in each step one library more
            if step == 4:
                graph = _capture(batch)
            if step == 5:
                loss.backward()
            session.step()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
    del graph
    assert session.results is not None
    found = session.results.beside
    assert found is not None
    rows = {row.what: row for row in found.rows}
    assert {what: row.bytes for what, row in rows.items()} == {
        FIRST: CONTEXT_BYTES,
        "first recorded call of cuFFT, aten::fft_fft": 16 * MIB,
        "first recorded call of cuDNN, aten::conv2d": 64 * MIB,
        "first recorded call of cuBLAS, aten::linear": 32 * MIB,
        "first recorded call of cuSOLVER, aten::linalg_cholesky": 8 * MIB,
        "capture of a CUDA graph": 2 * MIB,
        # Backward has handles of its own, of two libraries between two looks.
        f"one or more of: {_OF_BACKWARD}": (64 + 32) * MIB,
    }
    transform = rows["first recorded call of cuFFT, aten::fft_fft"]
    assert transform.file == __file__ and transform.line is not None
    assert "torch.fft.fft" in Path(__file__).read_text().splitlines()[transform.line - 1]
    assert (found.used_bytes, found.reserved_bytes) == (total - free, reserved)
    assert sum(row.bytes for row in found.rows) + reserved == total - free
    (section,) = (each for each in session.results.answer.sections if each.title == "On the card beside torch")
    assert section.sentences[1] == "The null GPU sets 700.00 MiB aside for each process."
    assert ("H100", "2.11.0", "13.0", "630 to 766 MiB", "25 trainings") in section.tables[1].rows
    # What is computed by nothing has no sentence on the first screen; a file, and a run that is read again, have all.
    assert not any("Beside torch" in sentence for sentence in session.results.answer.sentences)
    said = json.loads((folder / "peak.json").read_text())["beside_torch"]
    assert [row["bytes"] for row in said["rows"]] == [row.bytes for row in found.rows]
    save_kept_run(folder / "kept.npz", kept_run(session.results))
    assert results_of(load_kept_run(folder / "kept.npz")).beside == found


@runs_elsewhere
def test_a_first_step_that_is_not_recorded_has_the_models_call_backward_and_step() -> None:
    os.environ["NULL_GPU_TAKES"] = f"cublas={32 * MIB};cudnn={64 * MIB};cufft={16 * MIB};module={MIB}"
    model = nn.Sequential(Spectrum(), Mean(), nn.Linear(8, 2), Kernel()).cuda()
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 3, 16, 16, device="cuda")
    with profile_training(model, optimizer, save_dir=tempfile.mkdtemp(), schedule=Schedule(1, 1, 1, 1)) as session:
        for _ in range(4):
            torch.fft.fft(model(batch)).abs().sum().backward()
            optimizer.step()
            session.step()
            assert not any(module._forward_hooks for module in model.modules())  # the first step's are gone
    assert session.results is not None and session.results.beside is not None
    called = _line_of("(model(batch)).abs")
    assert [(row.bytes // MIB, row.what, row.line) for row in session.results.beside.rows][1:] == [
        (114, "the call of Sequential", called),  # plans, handles of two libraries, and two kernels
        # Plans of the loss and of its backward, and a kernel.
        (33, "from the end of the call of Sequential to the gradient of the output of Sequential", None),
        (96, "from the gradient of the output of Sequential to the beginning of the step of SGD", called),
    ]


@runs_elsewhere
def test_a_kernel_takes_memory_at_its_first_launch() -> None:
    os.environ["NULL_GPU_TAKES"] = f"kernel={MIB}"
    x = torch.ones(8, device="cuda")
    free = [torch.cuda.mem_get_info()[0]]
    for call in (torch.sin, torch.sin, torch.cos):
        call(x)
        free.append(torch.cuda.mem_get_info()[0])
    assert [before - after for before, after in pairwise(free)] == [MIB, 0, MIB]


def _line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@runs_elsewhere
def test_other_processes_have_names_where_the_driver_lists_this_one() -> None:
    ledger = DriverLedger(torch.device("cuda", 0))
    ledger.look()
    for own, expected in ((os.getpid(), [OtherProcess("jupyter", 41, 3072)]), (os.getpid() + 1, [])):
        listed = [(41, "jupyter", 3072), (own, "python", 900)]  # else numbers of another namespace
        with patch("tracer.capture.driver_looks.processes_on", return_value=listed):
            seen = ledger.seen(torch.device("cuda", 0))
        assert seen is not None and [*seen.processes] == expected
    assert ledger.seen(torch.device("cuda", 1)) is None
    edges = [("beginning", "a"), ("end", "a"), ("beginning", "a"), ("end", "b")]
    for number, (edge, what) in enumerate(edges):
        with patch("tracer.capture.driver_looks.devices.device_memory", return_value=(1000 - number, 1000)):
            ledger.look(edge, what)
    spans = [call.what for call in ledger.seen(torch.device("cuda", 0)).calls]
    assert spans == ["a", "from the end of a to the beginning of a", "from the beginning of a to the end of b"]
    cpu = DriverLedger(torch.device("cpu"))
    cpu.look()
    assert cpu.seen(torch.device("cpu")) is None
