"""A warning is ignored, and the program's others are said as often as without it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tracer import profile_training
from tracer.capture.ignored_warnings import ignore, ignored
from tracer.sessions.schedule import Schedule


@pytest.fixture
def said() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        yield said


def test_a_warning_is_ignored_while_the_block_lasts(said: list[warnings.WarningMessage]) -> None:
    with ignored("slow"):
        warnings.warn("Slow, since nothing is compiled.", stacklevel=1)
        warnings.warn("Another one.", stacklevel=1)
    warnings.warn("Slow again.", stacklevel=1)
    assert [str(each.message) for each in said] == ["Another one.", "Slow again."]


def test_a_module_can_be_named(said: list[warnings.WarningMessage]) -> None:
    with ignored("slow", r"somebody\.else"):
        warnings.warn("Slow.", stacklevel=1)
    assert len(said) == 1


def test_an_equal_filter_of_the_programs_stays() -> None:
    with warnings.catch_warnings():
        end = ignore("slow")
        warnings.filterwarnings("ignore", message="slow")
        theirs = warnings.filters[0]
        end()
        end()
        assert theirs in warnings.filters
        end = ignore("slow", is_last=True)
        assert warnings.filters[-1][0] == "ignore"
        end()


def test_what_the_program_warned_of_before_a_session_is_not_said_again(
    said: list[warnings.WarningMessage], tmp_path: Path
) -> None:
    """Python says it once for each line, until somebody calls `filterwarnings`."""

    def step() -> None:
        warnings.warn("Deprecated.", stacklevel=1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    step()
    schedule = Schedule(0, 0, 1, 2)
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=schedule, screen="none") as session:
        for _ in range(schedule.num_steps):
            step()
            session.step()
    step()
    assert [str(each.message) for each in said if "Deprecated" in str(each.message)] == ["Deprecated."]
