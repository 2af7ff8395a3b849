"""The life of a session, with one that records nothing: what happens in which order, and whose fault is told how."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from tracer.capture.objects.training_objects import TrainingObjects
from tracer.sessions.folder import SessionFolder
from tracer.sessions.session import Session, device_of, warn_at_users_line


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
    def has_let_go(self) -> bool:
        return self._objects is None


def test_it_is_on_within_the_block_and_keeps_nothing_behind_it(tmp_path: Path) -> None:
    session = Recording(save_dir=tmp_path / "here")
    with session:
        assert (session.events, session.has_let_go) == (["on"], False)
        other = Recording(save_dir=tmp_path / "here")
        with other:
            assert other._folder is not None and other._folder.is_another
    assert (session.events, session.has_let_go) == (["on", "off", "finish"], True)
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
