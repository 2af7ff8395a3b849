"""The life of a session: what happens in which order, whose fault is told how, and nothing of the user's is kept."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.pieces import Pieces, raising
from tests.sessions.test_training_profile import SHORT, net, train_step
from tracer import profile_training
from tracer.capture.graph_captures import GRAPH_CAPTURES
from tracer.capture.objects.live_tensors import FROZEN
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.sessions.folder import SessionFolder
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import Session, device_of, warn_at_users_line
from tracer.sessions.timeline_tracer import TimelineTracer
from tracer.sessions.workload_run import run_profile


class Recording(Session):
    """Notes what it is told, and fails where it is asked to."""

    _name = "The test"

    def __init__(self, *fails_in: str, save_dir: Path | None = None) -> None:
        super().__init__(TrainingObjects(nn.Linear(1, 1), None), device="cpu")
        self._folder = SessionFolder(save_dir) if save_dir is not None else None
        self.fails_in = fails_in
        self.events: list[str] = []

    def _note(self, event: str) -> None:
        self.events.append(event)
        if event in self.fails_in:
            raise ZeroDivisionError(event)

    def step(self) -> None:
        with self._never_the_loops_fault():
            self._note("step")

    def _switch_on(self) -> None:
        self._note("on")

    def _switch_off(self, error: BaseException | None) -> None:
        self._note("off")

    def _switch_off_in_child(self) -> None:
        self._note("off in child")

    def _finish(self, error: BaseException | None) -> None:
        assert self._objects is not None, "what is left to do may need the model"
        self._note("finish")

    @property
    def has_released(self) -> bool:
        return self._objects is None


def test_it_is_on_within_the_block_and_keeps_nothing_behind_it(tmp_path: Path) -> None:
    session = Recording(save_dir=tmp_path / "here")
    with session:
        assert (session.events, session.has_released) == (["on"], False)
        other = Recording(save_dir=tmp_path / "here")
        with other:
            assert other._folder is not None and other._folder.is_another
    assert (session.events, session.has_released) == (["on", "off", "finish"], True)
    with Recording(save_dir=tmp_path / "here") as again:  # the folder is free again
        assert again._folder is not None and not again._folder.is_another


def test_each_fault_is_told_once_whatever_warnings_the_program_ignores(capsys: pytest.CaptureFixture[str]) -> None:
    session = Recording("step", "finish")
    with warnings.catch_warnings(), session:
        warnings.simplefilter("ignore")
        session.step()
        assert session.events == ["on", "step", "off"]
    first, last = (text.splitlines() for text in capsys.readouterr().err.split("Note: ")[1:])
    assert first[0] == "The test has stopped, and the loop goes on: an internal fault." and first[-2].endswith(" step")
    assert last[0] == "The profile is not complete: an internal fault." and last[-2].endswith(" finish")
    assert str(session.fault) == "step"


def test_evaluation_is_told_from_a_training_in_that_mode() -> None:
    """Only where some step ended in training mode is evaluation mode an evaluation's."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    session = Recording()
    session._objects = TrainingObjects(model, None)
    model.eval()
    session._note_mode()
    assert not session._is_evaluating()
    model.train()
    session._note_mode()
    assert not session._is_evaluating()
    model[0].eval()  # a frozen part
    assert not session._is_evaluating()
    model.eval()
    session._note_mode()
    assert session._is_evaluating()


def test_a_warning_names_the_line_outside_of_this_program() -> None:
    with pytest.warns(UserWarning, match="here") as told, ExitStack() as stack:  # as somebody's own block may end it
        stack.callback(warn_at_users_line, "here")
    assert told[0].filename == __file__


def test_the_device_of_a_model_that_has_a_list_of_its_own_as_buffers() -> None:
    model = nn.Linear(1, 1)
    model.buffers = []  # type: ignore[assignment]  # Megatron-core's DistributedDataParallel
    assert device_of(TrainingObjects(model, None)) == torch.device("cpu")


# ---- faults of ours --------------------------------------------------------------------------------------------------


def boom(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("ours")


def assert_all_off(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert GRAPH_CAPTURES._num_starts == FROZEN._num_starts == 0


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, session: ProfileSession, num_steps: int) -> list[float]:
    losses = []
    for _ in range(num_steps):
        losses.append(train_step(model, optimizer))
        session.step()
    return losses


FAULTS: dict[str, tuple[Any, str]] = {
    "a walk over live tensors": ("tracer.sessions.observations.live_tensors", "live_tensors"),
    "an observation in a hook": (StorageObserver, "observe"),
    "keeping what a cycle recorded": (TimelineTracer, "__call__"),
    "switching the profiler on": (torch.profiler.profile, "step"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_of_ours_in_a_step_is_told_once_and_the_loop_goes_on(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, optimizer = net()
    alone = [train_step(model, optimizer) for _ in range(SHORT.num_steps)]
    torch.manual_seed(0)
    model, optimizer = net()
    where, name = FAULTS[what]
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session:
        monkeypatch.setattr(where, boom) if isinstance(where, str) else monkeypatch.setattr(where, name, boom)
        assert loop(model, optimizer, session, SHORT.num_steps) == alone
        assert_all_off(model, optimizer)
    assert isinstance(session.fault, ZeroDivisionError)
    _, told = capsys.readouterr().err.split("Note: Profiling has stopped, and the loop goes on: ")
    assert "ZeroDivisionError: ours" in told, "an internal fault keeps its traceback"
    assert session.num_steps_done == SHORT.num_steps


@pytest.mark.parametrize("name", ["output_files.write_outputs", "profile_session.describe_parameters"])
def test_a_fault_of_ours_at_the_end_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"tracer.sessions.{name}", boom)
    model, optimizer = net()
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session:
        loop(model, optimizer, session, SHORT.num_steps)
    told = capsys.readouterr().err
    assert re.search(r"The profile is not complete[\s\S]*ZeroDivisionError: ours", told)
    assert isinstance(session.fault, ZeroDivisionError)
    assert_all_off(model, optimizer)


def test_a_fault_of_ours_never_hides_the_users_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.sessions.output_files.write_outputs", boom)
    model, optimizer = net()
    with (
        pytest.raises(KeyError, match="mine") as caught,
        profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session,
    ):
        loop(model, optimizer, session, 3)
        raise KeyError("mine")
    assert any("ZeroDivisionError: ours" in note for note in caught.value.__notes__)


def test_what_fails_while_switching_on_switches_everything_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler may be running already when something behind it fails."""
    model, optimizer = net()
    entered = torch.profiler.profile.__enter__

    def enter_and_fail(self: Any) -> Any:
        entered(self)
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(torch.profiler.profile, "__enter__", enter_and_fail)
    with pytest.raises(ZeroDivisionError), ProfileSession(model, optimizer, schedule=Schedule(0, 0, 1, 1)):
        pass
    assert_all_off(model, optimizer)
    monkeypatch.undo()
    with torch.profiler.profile():
        torch.zeros(1)


def test_the_command_lines_run_keeps_the_traceback_of_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tracer.sessions.observations.live_tensors", boom)
    results = run_profile(Pieces(), schedule=Schedule(1, 1, 1, 1), timing=False)
    assert "Profiling has stopped" in capsys.readouterr().err
    assert results.failure is not None
    assert isinstance(results.failure.error, ZeroDivisionError)
    assert any("ZeroDivisionError: ours" in note and "Traceback" in note for note in results.notes)


# ---- nothing of the user's is kept ----------------------------------------------------------------------------------


def without_collector(check: Callable[[], list[Any]]) -> list[Any]:
    gc.collect()
    gc.disable()
    try:
        return [reference() for reference in check()]
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [None, RuntimeError("boom")])
def test_a_run_keeps_nothing_of_the_workload(error: BaseException | None) -> None:
    """Without a collection: the session, the profiler and the callback do not hold each other."""

    def check() -> list[Any]:
        before: dict[str, Any] = {} if error is None else {"before": raising(error, piece="backward", step=4)}
        workload = Pieces(**before)
        references = [
            weakref.ref(workload.model),
            weakref.ref(workload.optimizer),
            weakref.ref(workload.model[0].weight),  # type: ignore[index]
        ]
        results = run_profile(workload, schedule=Schedule(1, 1, 2, 1))
        assert (results.failure is None) == (error is None)
        del workload
        return references

    assert without_collector(check) == [None, None, None]


def test_a_session_that_is_kept_keeps_nothing_of_the_users(tmp_path: Path) -> None:
    sessions = []

    def check() -> list[Any]:
        model, optimizer = net()
        batches = []
        with profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session:
            for _ in range(SHORT.num_steps):
                batch = torch.randn(4, next(model.parameters()).shape[1])
                batches.append(weakref.ref(batch))
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                del batch
        sessions.append(session)
        return [weakref.ref(model), weakref.ref(optimizer), *batches]

    found = without_collector(check)
    assert found == [None] * len(found)
    assert sessions[0].results is not None


def test_what_a_failure_came_from_keeps_no_frames() -> None:
    def check() -> list[Any]:
        references = []

        def failing(piece: str, step: int) -> None:
            if (piece, step) == ("backward", 4):
                big = torch.zeros(100)
                references.append(weakref.ref(big))
                try:
                    raise KeyError("inner")
                except KeyError as inner:
                    raise RuntimeError("outer") from inner

        kept.append(run_profile(Pieces(before=failing), schedule=Schedule(1, 1, 2, 1)))
        return references

    kept: list[Any] = []
    assert without_collector(check) == [None]
    assert isinstance(kept[0].failure.error.__cause__, KeyError)


def test_other_threads_that_call_the_model_are_named(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    model, optimizer = net()
    with (
        ThreadPoolExecutor(1, thread_name_prefix="forward") as pool,
        profile_training(model, optimizer, save_dir=tmp_path, schedule=SHORT) as session,
    ):
        for _ in range(SHORT.num_steps):
            x = torch.randn(64, next(model.parameters()).shape[1])
            pool.submit(model, x).result().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    assert session.observed.storages.observations().threads == ("forward_0",)
    peak = session.results.findings.worst.peak
    assert peak.threads == ("forward_0",)
    assert peak.unseen_bytes > 0
    unseen = [row for row in peak.rows if row.phase == "not recorded"]
    assert {row.category for row in unseen} <= {"UNKNOWN", "ACTIVATION"}
    assert {(row.module, row.line) for row in unseen} == {(None, None)}
    assert sum(row.bytes for row in unseen) == peak.unseen_bytes
    assert peak.unexplained_bytes == 0
