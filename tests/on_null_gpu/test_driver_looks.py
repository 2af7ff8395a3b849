"""What the driver counts beside torch's allocator, where the null GPU's driver is told to take memory."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.truth.isolate import runs_elsewhere
from tracer.answers.beside_torch import FIRST, NOT_PLACED
from tracer.capture.driver_looks import DriverLedger
from tracer.exporters.recording_file.kept_run_file import load_kept_run, save_kept_run
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import profile_training

MIB = 1 << 20
_TAKEN = {"cublas": 32 * MIB, "cudnn": 64 * MIB, "cufft": 16 * MIB, "graph": 2 * MIB}


class Spectrum(nn.Module):
    """The size of a transform."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x).abs()


class Mean(nn.Module):
    """Of each channel, through a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.conv(x).mean((2, 3))
        return mean


def _capture(batch: Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch * 2
    return graph


@runs_elsewhere
def test_each_rise_has_its_call_and_line_and_all_sum_to_the_drivers_count() -> None:
    os.environ["NULL_GPU_TAKES"] = ";".join(f"{place}={size}" for place, size in _TAKEN.items())
    model = nn.Sequential(Spectrum(), Mean(), nn.Linear(8, 2)).cuda()
    batch, folder = torch.randn(4, 3, 16, 16, device="cuda"), Path(tempfile.mkdtemp())
    with profile_training(model, save_dir=folder, schedule=Schedule(0, 0, 5, 1), keep_recording=True) as session:
        for step in range(5):
            loss = model[: step + 1](batch).sum()  # in each step one library more
            if step == 3:
                graph = _capture(batch)
            if step == 4:
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
        "capture of a CUDA graph": 2 * MIB,
        # Backward has handles of its own, of two libraries between two looks.
        NOT_PLACED: (64 + 32) * MIB,
    }
    transform = rows["first recorded call of cuFFT, aten::fft_fft"]
    assert transform.file == __file__ and transform.line is not None
    assert "torch.fft.fft" in Path(__file__).read_text().splitlines()[transform.line - 1]
    assert (found.used_bytes, found.reserved_bytes) == (total - free, reserved)
    assert sum(row.bytes for row in found.rows) + reserved == total - free
    # What is computed by nothing has no sentence on the first screen; a file, and a run that is read again, have all.
    assert not any("Beside torch" in sentence for sentence in session.results.answer.sentences)
    said = json.loads((folder / "peak.json").read_text())["beside_torch"]
    assert [row["bytes"] for row in said["rows"]] == [row.bytes for row in found.rows]
    save_kept_run(folder / "kept.npz", kept_run(session.results))
    assert results_of(load_kept_run(folder / "kept.npz")).beside == found


_LISTED = "41, /usr/bin/jupyter lab, 3072\n{own}, python, 900\n42, [N/A], [N/A]\n"


@runs_elsewhere
def test_other_processes_have_names_where_the_driver_lists_this_one() -> None:
    ledger = DriverLedger(torch.device("cuda", 0))
    ledger.look()
    listed = {os.getpid(): [("/usr/bin/jupyter lab", 41, 3072 * MIB)], os.getpid() + 1: []}  # other numbers there
    for own, expected in listed.items():
        ended = subprocess.CompletedProcess([], 0, _LISTED.format(own=own))
        with patch.object(subprocess, "run", return_value=ended):
            seen = ledger.seen(torch.device("cuda", 0))
        assert seen is not None and [(one.name, one.number, one.bytes) for one in seen.processes] == expected
    assert ledger.seen(torch.device("cuda", 1)) is None
    cpu = DriverLedger(torch.device("cpu"))
    cpu.look()
    assert cpu.seen(torch.device("cpu")) is None
