"""One memory of a card for all processes of a run: what is left, what fails, and what one that is gone still holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.null_gpu.started import needs_null_gpu
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

PROGRAMS = Path(__file__).with_name("node_programs.py")


def run(*arguments: str) -> None:
    command: Iterable[str] = (sys.executable, str(PROGRAMS), *arguments)
    variables = environment([H100]) | {"PYTHONPATH": str(PROGRAMS.parents[2])}
    ended = subprocess.run([*command], env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


@needs_null_gpu
def test_two_processes_that_together_exceed_a_card_fail_where_a_real_one_would() -> None:
    run("together")


@needs_null_gpu
def test_who_held_a_card_when_it_was_fullest_is_known_after_they_are_gone() -> None:
    run("fullest")


@needs_null_gpu
def test_of_killed_processes_no_memory_is_counted() -> None:
    run("kills", "5")


@needs_null_gpu
@pytest.mark.slow
def test_of_a_hundred_killed_processes_no_memory_is_counted() -> None:
    run("kills", "100")


@needs_null_gpu
def test_a_fork_is_a_trial_of_its_own() -> None:
    run("forks")


@needs_null_gpu
@pytest.mark.slow
def test_a_tensor_that_another_process_is_given_is_counted_once() -> None:
    run("tensors")
