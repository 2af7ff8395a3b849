"""What was observed is stored: every output is written again from it, to the byte, whatever the run was."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.exporters.recording_file.samples import SHORT, on_cpu, on_cuda
from tests.pieces import Pieces, raising
from tests.skips import by_default
from tests.training_steps import build_workload
from tracer.answers.failure_lines import failure_lines
from tracer.answers.run_results import RunResults
from tracer.capture.profiler.inline_operators import place_inline_operators
from tracer.exporters.recording_file.kept_run_file import KeptRun, load_kept_run, save_kept_run
from tracer.sessions.output_files import OUTPUTS, run_description, write_outputs
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import profile_training
from tracer.sessions.workload_run import run_profile

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "recording.npz"}


def written_again(folder: Path, again: Path) -> dict[str, bytes]:
    """The outputs of what a folder's recording holds."""
    kept = results_of(load_kept_run(folder / "recording.npz"))
    assert [one.error for one in write_outputs(kept, again) if one.error is not None] == []
    return files(again)


def assert_same(first: dict[str, bytes], again: dict[str, bytes]) -> None:
    assert list(first) and sorted(first) == sorted(again)
    assert [name for name, content in first.items() if content != again[name]] == []


@pytest.mark.parametrize(
    "name", by_default(["convnet", "checkpointing_reentrant", "functional_model", "replaced_data"], {"convnet"})
)
def test_every_output_is_written_again_to_the_byte(name: str, tmp_path: Path) -> None:
    workload = build_workload(name)
    model = workload.model if workload.model is not None else nn.Module()
    first = tmp_path / "first"
    options: dict[str, Any] = {"schedule": SHORT, "device": "cpu", "keep_recording": True}
    with profile_training(model, workload.optimizer, save_dir=first, **options) as profile:
        for _ in range(SHORT.num_steps):
            workload.step()
            profile.step()
    assert len(files(first)) == len(OUTPUTS) - 2  # no timing pass, and the recording itself
    assert_same(files(first), written_again(first, tmp_path / "again"))


def through_a_file(results: RunResults, folder: Path) -> KeptRun:
    path = folder / "recording.npz"
    save_kept_run(path, kept_run(results))
    return load_kept_run(path)


def assert_written_again(results: RunResults, folder: Path) -> RunResults:
    """Both by the files and by what is told of them."""
    assert [one.error for one in write_outputs(results, folder / "first") if one.error is not None] == []
    again = results_of(through_a_file(results, folder))
    assert [one.error for one in write_outputs(again, folder / "again") if one.error is not None] == []
    assert_same(files(folder / "first"), files(folder / "again"))
    assert run_description(again) == run_description(results)
    return again


def test_a_run_with_its_times_settings_and_losses_is_written_again(tmp_path: Path) -> None:
    again = assert_written_again(on_cpu(), tmp_path)
    assert again.timings == on_cpu().timings
    assert (again.losses, again.num_steps) == (on_cpu().losses, on_cpu().num_steps)
    assert (again.unused_parameters, again.parameters) == (on_cpu().unused_parameters, on_cpu().parameters)


def test_the_run_is_described_and_not_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py", "--name", "a b"])
    results = run_profile(Pieces(), schedule=SHORT, timing=False)
    monkeypatch.setattr("sys.argv", ["main.py", "report", "x"])
    monkeypatch.setattr(torch, "__version__", "99.0")
    described = run_description(results_of(through_a_file(results, tmp_path)))
    assert described["command"] == "train.py --name 'a b'"
    assert described["torch"] != "99.0"
    # Linear 12 to 16, batch norm of 16, Linear 16 to 3.
    assert described["parameters"] == f"6 tensors, {4 * (12 * 16 + 16 + 2 * 16 + 16 * 3 + 3) / 1024:.2f} KiB"
    assert described["date"] == results.origin.date


def test_that_nothing_was_computed_is_kept(tmp_path: Path) -> None:
    results = run_profile(Pieces(), schedule=SHORT, timing=False)
    origin = dataclasses.replace(results.origin, caveat="Nothing was computed.")
    again = results_of(through_a_file(dataclasses.replace(results, origin=origin), tmp_path))
    assert again.origin == origin and not again.computed and results.computed


def test_a_run_that_failed_tells_so_again(tmp_path: Path) -> None:
    """In its second cycle, which is cut short, and of which no means are taken."""
    failing = Pieces(before=raising(ValueError("no such batch"), piece="backward", step=3))
    results = run_profile(failing, schedule=SHORT)
    again = assert_written_again(results, tmp_path)
    assert again.findings is not None
    assert [cycle.source.is_whole for cycle in again.findings.parts] == [True, False]
    kept = through_a_file(results, tmp_path)
    assert kept.failure == tuple(failure_lines(results))
    assert kept.failure[0].startswith("Error: Step 4 raised ValueError: no such batch")


def test_a_run_of_which_nothing_was_recorded_keeps_its_times(tmp_path: Path) -> None:
    again = assert_written_again(dataclasses.replace(on_cpu(), findings=None), tmp_path)
    assert again.findings is None
    assert list(files(tmp_path / "again")) == ["cuda_timing.txt"]


# ---- elsewhere -------------------------------------------------------------------------------------------------------

NET = """import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        y = x * 2
        z = torch.relu(y)
        return z + x
"""


@pytest.fixture
def own_model(tmp_path: Path) -> RunResults:
    """A model in a folder of its own, with a virtual environment's file beside, that is gone after the run."""
    folder = tmp_path / "project"
    (folder / "env").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").touch()
    for name in ("net.py", "env/net.py"):
        (folder / name).write_text(NET)
    namespaces: list[dict[str, Any]] = []
    for name in ("net.py", "env/net.py"):
        namespaces.append({"__name__": "net"})
        exec(compile(NET, str(folder / name), "exec"), namespaces[-1])
    model = nn.Sequential(*(namespace["Net"]() for namespace in namespaces), nn.Linear(8, 3))
    batch = torch.randn(4, 8), torch.randn(4, 3)
    results = run_profile(Pieces(model, batch=lambda: batch), schedule=SHORT, timing=False)
    return dataclasses.replace(results, project_root=folder)


def test_files_and_lines_are_known_where_the_project_is_not(own_model: RunResults, tmp_path: Path) -> None:
    first = tmp_path / "first"
    write_outputs(own_model, first)
    kept = through_a_file(own_model, tmp_path)
    folder = tmp_path / "project"
    sources = {source.path: source for source in kept.sources}
    assert sources[str(folder / "net.py")].project_name == "net.py"
    assert sources[str(folder / "net.py")].text == NET
    assert sources[str(folder / "env" / "net.py")].project_name is None
    folder.rename(tmp_path / "moved")
    assert_same(files(first), written_again(tmp_path, tmp_path / "again"))


def test_a_report_reads_the_lines_again(own_model: RunResults, tmp_path: Path) -> None:
    """So a later version that reads more of them says more."""
    kept = through_a_file(own_model, tmp_path)
    recording = kept.cycles[0].recording
    unread = dataclasses.replace(recording.ops, inline_frame=recording.ops.last_frame)
    cycle = dataclasses.replace(kept.cycles[0], recording=dataclasses.replace(recording, ops=unread))
    again = results_of(dataclasses.replace(kept, cycles=(cycle,)))
    assert again.findings is not None
    assert np.array_equal(again.findings.parts[0].source.recording.ops.inline_frame, recording.ops.inline_frame)
    assert not np.array_equal(recording.ops.inline_frame, recording.ops.last_frame)


def test_without_a_text_the_lines_that_were_read_stay(own_model: RunResults, tmp_path: Path) -> None:
    recording = through_a_file(own_model, tmp_path).cycles[0].recording
    assert np.array_equal(place_inline_operators(recording, {}.get).ops.inline_frame, recording.ops.inline_frame)  # type: ignore[arg-type]


# ---- with an allocator's history, as on CUDA -------------------------------------------------------------------------


LEFT_OUT = "Requested sizes and segments are left out: "


def with_odd_history() -> RunResults:
    """Of a version that could not read it, or of a torch that writes it differently."""
    run = on_cuda()
    assert run.snapshot is not None
    run.snapshot["device_traces"][0][0]["size"] = "much"
    run.history.notes.append(f"{LEFT_OUT}something")
    return dataclasses.replace(run, notes=(f"{LEFT_OUT}something",))


def test_the_allocators_history_is_kept(tmp_path: Path) -> None:
    again = assert_written_again(on_cuda(), tmp_path)
    assert again.snapshot == on_cuda().snapshot


def test_what_ran_out_of_memory_is_explained_again(tmp_path: Path) -> None:
    results = on_cuda(oom=True)
    kept = through_a_file(results, tmp_path)
    again = results_of(kept)
    assert kept.device_bytes == 80 << 30 and again.failed_allocation is not None
    assert again.failed_allocation.event.asked_bytes == 1 << 40
    assert results_of(through_a_file(on_cuda(), tmp_path)).failed_allocation is None
    first_step = dataclasses.replace(results, findings=None, timings=None, keep_recording=True)
    assert again.failed_allocation.first is not None
    (change,) = again.failed_allocation.first.changes
    # What a recorded step alone knows of that moment is not in it.
    failed = results_of(through_a_file(first_step, tmp_path)).failed_allocation
    first_step = dataclasses.replace(first_step, failed_allocation=failed)
    write_outputs(first_step, tmp_path / "first")
    write_outputs(again, tmp_path / "failed")
    for folder in ("first", "failed"):
        page = (tmp_path / folder / "memory_timeline.html").read_text("utf-8")
        assert change.words in page
    assert_same(files(tmp_path / "first"), written_again(tmp_path / "first", tmp_path / "again"))


@pytest.mark.slow
def test_a_history_that_cannot_be_read_is_a_note_anew(tmp_path: Path) -> None:
    """Of this version's, not of the one that kept it."""
    again = results_of(through_a_file(with_odd_history(), tmp_path))
    (note,) = again.notes
    assert note.startswith(LEFT_OUT) and not note.endswith("something")
    assert again.findings is not None
    assert [one.error for one in write_outputs(again, tmp_path) if one.error is not None] == []
    assert pickle.loads((tmp_path / "memory_snapshot.pkl").read_bytes()) == with_odd_history().snapshot
