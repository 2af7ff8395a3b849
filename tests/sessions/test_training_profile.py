"""`profile_training` around a loop of one's own: same findings, files at the end, and nothing of the loop changes."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.skips import by_default
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.table import Phase
from tracer.capture.device.device_blocks import AsleepMemory
from tracer.capture.objects.known_storages import Role
from tracer.errors import OutputError, TracerError
from tracer.sessions import profile_answer
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import Screen, ScriptVoice
from tracer.sessions.training_profile import TrainingProfile, profile_training
from tracer.sessions.training_watch import TrainingWatch

SHORT = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=1)


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def profiled(folder: Path, num_steps: int = 3, **options: Any) -> TrainingProfile:
    """A session around some steps of `net`, with its files in a folder."""
    model, optimizer = net()
    with profile_training(model, optimizer, save_dir=folder, **{"schedule": SHORT, **options}) as session:
        for _ in range(num_steps):
            train_step(model, optimizer)
            session.step()
    return session


def test_the_files_are_there_when_the_block_ends(tmp_path: Path) -> None:
    model, optimizer = net()
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session:
        while not session.is_complete:
            train_step(model, optimizer)
            session.step()
        assert not list(tmp_path.iterdir())
    peak = json.loads((tmp_path / "peak.json").read_text())
    assert sum(row["bytes"] for row in peak["rows"]) == peak["peak_bytes"] == peak["allocator_peak_bytes"]
    assert {"max_mem.txt", "memory_snapshot.pkl"} <= {path.name for path in tmp_path.iterdir()}
    assert session.results.findings.worst.peak.peak_bytes == peak["peak_bytes"]
    assert session.results.unused_parameters == ()
    assert {each.path.name for each in session.written} == {path.name for path in tmp_path.iterdir()}


def test_an_optimizer_of_another_model_is_said_at_the_beginning_and_not_of_a_script(tmp_path: Path) -> None:
    (model, own), (_, other) = net(), net()
    sentence = "AdamW updates none of the 4 parameters of the model"
    for begin in (TrainingProfile, TrainingWatch):
        with pytest.warns(UserWarning, match=sentence) as warned:
            begin(model, other, save_dir=tmp_path)
        assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingProfile(model, own, save_dir=tmp_path)
        TrainingProfile(model, other, voice=ScriptVoice(), save_dir=tmp_path)
        TrainingWatch(model, other, voice=ScriptVoice(), save_dir=tmp_path)
        TrainingProfile(model.requires_grad_(False), other, save_dir=tmp_path)  # such as latents of a fixed model


def test_the_models_input_is_found_by_itself(tmp_path: Path) -> None:
    known = profiled(tmp_path).observed.storages.observations()
    inputs = known.size_bytes[known.role == Role.ARGUMENT]
    assert inputs.tolist() == [4 * 8 * 4]


def test_what_another_model_computed_is_not_an_input(tmp_path: Path) -> None:
    first, (model, optimizer) = nn.Linear(8, 8), net()
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session:
        for _ in range(3):
            model(first(torch.randn(4, 8))).sum().backward()
            optimizer.step()
            session.step()
    assert "batch[0]" not in session.observed.storages.observations().names


def test_an_exception_goes_on_its_way_and_the_files_are_written(tmp_path: Path) -> None:
    model, optimizer = net()
    boom = ValueError("the data ran out")

    def loop() -> None:
        with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as loop.session:  # type: ignore[attr-defined]
            train_step(model, optimizer)
            loop.session.step()  # type: ignore[attr-defined]
            train_step(model, optimizer)
            raise boom

    with pytest.raises(ValueError, match="the data ran out") as caught:
        loop()
    assert caught.value is boom
    failure = loop.session.results.failure  # type: ignore[attr-defined]
    assert (failure.step, str(failure.error)) == (1, "the data ran out")
    assert failure.error is not boom
    assert failure.error.__traceback__ is None
    assert failure.line.file == __file__
    assert (tmp_path / "peak.json").exists()


@pytest.mark.parametrize("screen", by_default([False, True], {True}))
def test_a_file_that_cannot_be_written_is_said_and_the_others_are_there(
    screen: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """By a warning where nothing is printed, so that it is said once."""
    (tmp_path / "peak.json").mkdir()
    profiled(tmp_path, 2, schedule=Schedule(0, 0, 1, 1), screen=screen)
    assert (tmp_path / "max_mem.txt").is_file()
    says = "peak.json cannot be written"
    warned = [str(one.message) for one in recwarn if says in str(one.message)]
    assert (len(warned), says in capfd.readouterr().err) == ((0, True) if screen else (1, False))


@pytest.mark.parametrize("has_slept", [False, True])
def test_memory_that_an_engine_has_unmapped_is_no_larger_peak(
    has_slept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch's counter has 1 GiB at its most, which is a note, but for a program in which an engine slept."""
    asleep = AsleepMemory()
    asleep.note([(0, 1000, 1 << 30)] if has_slept else [])
    monkeypatch.setattr(profile_answer, "ASLEEP", asleep)
    monkeypatch.setattr(profile_answer, "peak_allocated_bytes", lambda device: 1 << 30)
    profiled(tmp_path, voice=ScriptVoice(), screen="full").tell()
    assert ("used more than the peak below: 1.00 GiB" in capfd.readouterr().out) != has_slept


class FullDisk(io.StringIO):
    """A stdout that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_screen_that_takes_nothing_is_a_warning_and_the_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", FullDisk())
    with pytest.warns(UserWarning, match="could not be printed on stdout: No space left on device"):
        session = profiled(tmp_path, 1, schedule=Schedule(0, 0, 1, 1), screen=True)
    assert {path.name for path in tmp_path.iterdir()} == {each.path.name for each in session.written}
    assert (tmp_path / "peak.json").is_file()


def test_a_folder_that_cannot_be_written_is_said_before_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        profile_training(*net(), save_dir=tmp_path / "file")


def test_a_loop_that_is_too_short_says_so_at_the_users_own_line(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ended after 1 step, and the first one that is recorded is step 3") as caught:
        profiled(tmp_path, 1, schedule=Schedule())
    assert caught[0].filename == __file__
    assert not (tmp_path / "peak.json").exists()


def test_a_loop_may_go_on_after_the_last_recorded_step(tmp_path: Path) -> None:
    session = profiled(tmp_path, 9)
    assert len(session.results.findings.parts) == 1


@pytest.mark.parametrize("screen", by_default(["none", "short", "full", False, True], {"none", True}))
def test_the_screen_is_shown_where_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], screen: Screen | bool
) -> None:
    profiled(tmp_path, screen=screen)
    shown = capfd.readouterr()
    assert ("Peak: " in shown.out) == (screen in ("full", True))
    assert ("Peak: " in shown.err) == (screen == "short")
    assert ("peak.json" in shown.err) == ("Next: open " in shown.err) == (screen not in ("none", False))


def test_the_short_screen_fits_24_lines_and_has_the_peak_and_the_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    profiled(tmp_path)
    lines = capfd.readouterr().err.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Peak: "))
    assert len(lines[at:]) <= 24 and any(line.startswith(f"Files in {tmp_path}: max_mem.txt") for line in lines[at:])


def test_a_screen_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TracerError, match="no screen 'loud'"):
        profile_training(net()[0], save_dir=tmp_path, screen="loud")  # type: ignore[arg-type]


def test_files_of_an_earlier_run_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "cuda_timing.txt").write_text("of another run")
    with pytest.warns(UserWarning, match=r"^cuda_timing.txt in .* is from an earlier run") as caught:
        profiled(tmp_path)
    assert caught[0].filename == __file__


def test_what_an_optimizer_keeps_between_its_evaluations_is_its_state(tmp_path: Path) -> None:
    """LBFGS drops the oldest entry of its history in the step that made it. What it only searches with is no state."""
    torch.manual_seed(0)
    model, batch, target = nn.Linear(32, 16), torch.randn(64, 32), torch.randn(64, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, history_size=2, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(batch) - target).pow(4).mean()
        loss.backward()
        return loss

    with profile_training(model, optimizer, save_dir=tmp_path, schedule=Schedule(0, 0, 2, 1), screen=False) as session:
        for _ in range(2):  # its history is in its state from the end of the first step on
            optimizer.step(closure)  # type: ignore[arg-type]
            session.step()
    assert session.results is not None
    assert session.results.findings is not None
    cycle = session.results.findings.worst
    is_entry = cycle.blocks.size_bytes == 4 * (32 * 16 + 16)
    went = cycle.source.lifetimes.freed_at < len(cycle.source.lifetimes.events)
    second = cycle.blocks.values.index(cycle.source.attribution.step_names[1])
    made = is_entry & went & (cycle.blocks.phase == Phase.OPTIMIZER) & (cycle.blocks.step == second)
    kinds = {Kind(kind).name for kind in cycle.blocks.kind[made].tolist()}
    assert kinds == {"OPTIMIZER_STATE", "TEMPORARY"}
    named = cycle.blocks.evidence[made & (cycle.blocks.kind == Kind.OPTIMIZER_STATE)]
    assert set(named.tolist()) == {Evidence.HELD_OBJECT}
