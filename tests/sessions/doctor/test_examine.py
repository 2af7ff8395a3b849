"""Checks in processes of their own: a process that dies takes one check with it, and figures of two are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tracer.results.doctor import CheckResult, Status, passed
from tracer.sessions.doctor import examine as module
from tracer.sessions.doctor.checks import DEVICE_CHECKS
from tracer.sessions.doctor.examine import BESIDE, NULL_GPU, Assignment, compare, examine
from tracer.sessions.doctor.installed import INSTALLED
from tracer.sessions.jobs.child_processes import ChildProcesses, Ended

CHECKS = ("card", "LSTM", "FNO", "cuDNN")


class Played:
    """In the place of a process: answers the checks in turn, and dies in one."""

    def __init__(
        self, dies_in: str = "", status: int = -11, says: Sequence[str] = ("of a project", "Fatal error")
    ) -> None:
        self.dies_in, self.status, self.says = dies_in, status, says
        self.assignments: list[Assignment] = []

    def __call__(self, children: ChildProcesses, variables: Mapping[str, str]) -> Ended:
        values = json.loads(variables["TORCH_TIMELINE_ROLE"])["doctor"]
        given = Assignment(**values)
        self.assignments.append(given)
        lines: list[dict[str, Any]] = [{"about": {"name": "", "torch": "2.15.0"}}]
        for name in CHECKS:
            if name in given.done or (given.names is not None and name not in given.names):
                continue
            lines.append({"begin": name})
            if name == self.dies_in:
                self._write(given, lines)
                return Ended(self.status, "\n".join(self.says))
            outcome = {"status": "PASS", "sentence": "Well.", "mend": "", "facts": {"allocated": 8, "reserved": 16}}
            here = name in ("card", "cuDNN")
            lines.append({"name": name, "outcome": outcome, "seconds": 0.5, "is_of_installation": here})
        self._write(given, lines)
        return Ended(0)

    def _write(self, given: Assignment, lines: Sequence[Mapping[str, Any]]) -> None:
        Path(given.file).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    processes = Played()
    monkeypatch.setattr(ChildProcesses, "run_again", lambda self, variables: processes(self, variables))
    monkeypatch.setattr(module, "environment", lambda cards, base: {})
    monkeypatch.setattr(module, "INSTALLED", {"torch": lambda: passed("Here.")})
    monkeypatch.setattr(module, "nvidia_driver", lambda: None)
    return processes


def statuses(checks: Sequence[CheckResult]) -> dict[str, str]:
    return {check.name: str(check.status) for check in checks}


def test_all_are_asked_and_the_null_gpu_beside_the_cpu(played: Played) -> None:
    report = examine(None, lambda line: None)
    assert statuses(report.installed) == {"torch": "PASS", "card": "PASS", "cuDNN": "PASS"}
    assert statuses(report.works) == {"LSTM": "PASS", "FNO": "PASS", NULL_GPU: "PASS"}
    assert not report.has_failed and report.about["torch"] == "2.15.0"
    assert sorted(list(given.names or ()) for given in played.assignments) == [[], ["LSTM"]]


def test_a_wrong_cudnn_does_not_end_the_process_before_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", version)
    about = module._about_device(torch.device("cpu"))
    assert about["cudnn"] is None and about["device"] == "cpu"


def test_a_process_that_dies_takes_one_check_with_it(played: Played) -> None:
    played.dies_in = "FNO"
    report = examine("cuda:1", lambda line: None)
    assert statuses(report.works) == {"LSTM": "PASS", "FNO": "FAIL", NULL_GPU: "PASS"}
    assert statuses(report.installed)["cuDNN"] == "PASS"
    (failed,) = report.with_status(Status.FAIL)
    assert failed.outcome.sentence == "Python ended by SIGSEGV here: Fatal error"
    assert failed.outcome.facts["printed"] == ["Fatal error"]
    second = next(given for given in played.assignments if given.done)
    assert set(second.done) == {"card", "LSTM", "FNO"} and second.device == "cuda:1"


def test_a_process_that_does_not_begin_is_said_and_not_tried_for_ever(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChildProcesses, "run_again", lambda self, variables: Ended(1, "ImportError: libcudnn.so.9"))
    report = examine(None, lambda line: None)
    assert statuses(report.works)["start of Python"] == "FAIL"
    assert "with status 1" in report.works[0].outcome.sentence and "libcudnn.so.9" in report.works[0].outcome.sentence


def test_a_check_that_raises_fails_with_the_end_of_its_traceback() -> None:
    try:
        raise ValueError("no such thing\nand more")
    except ValueError as error:
        outcome = module.broken(error)
    assert outcome.status is Status.FAIL and outcome.sentence == "ValueError: no such thing"
    assert "test_examine.py" in str(outcome.facts["traceback"]) and "doctor.json" in outcome.mend


EQUAL = {"LSTM": {"allocated": 1000, "reserved": 2000}}


@pytest.mark.parametrize(
    ("null", "status", "words"),
    [
        ({"LSTM": {"allocated": 1000, "reserved": 2000}}, Status.PASS, "2 peaks of 2 equal to the byte."),
        ({"LSTM": {"allocated": 1000, "reserved": 2100}}, Status.PASS, "1 peak of 2 equal to the byte; LSTM res"),
        ({"LSTM": {"allocated": 900, "reserved": 2000}}, Status.FAIL, "LSTM allocated -10.00%"),
        ({}, Status.FAIL, "LSTM does not run on the null GPU"),
    ],
)  # fmt: skip
def test_peaks_are_compared_to_the_byte(null: dict[str, Any], status: Status, words: str) -> None:
    outcome = compare(EQUAL, null)
    assert outcome.status is status and words in outcome.sentence
    assert status is Status.FAIL or outcome.facts["LSTM, allocated"] == [1000, null["LSTM"]["allocated"]]


def test_names_are_told_apart() -> None:
    names = (*INSTALLED, *(check.name for check in DEVICE_CHECKS), NULL_GPU, BESIDE)
    assert len(names) == len(set(names)) >= 35
