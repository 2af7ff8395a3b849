"""What torch says of its own profiler stays off the screen, and nothing else does."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch import nn

from tracer.capture.profiler.quiet_profiler import quiet_profiler, without_line
from tracer.capture.torch_private import torch_profiler


def test_lines_with_the_words_are_left_out_and_all_others_come_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    with without_line(b"unknown size"):
        os.write(2, b"mine\n[W a.cpp:3] of unknown size, and more\nhalf ")
        os.write(2, b"a line")
    os.write(2, b"\nafter\n")
    assert capfd.readouterr().err == "mine\nhalf a line\nafter\n"


def test_what_was_written_is_there_though_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), without_line(b"unknown size"):
        os.write(2, b"mine\n")
        raise KeyError
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines()[-1] == "after"


def test_freeing_an_older_block_leaves_no_profiler_behind() -> None:

    for _ in range(2):
        torch_profiler.free_an_older_block()
    assert not torch._C._autograd._profiler_enabled()
    with torch.profiler.profile(profile_memory=True):
        torch_profiler.free_an_older_block()  # that of somebody else stays
        assert torch._C._autograd._profiler_enabled()


def test_parameters_that_are_no_leaves_are_recorded_without_a_warning() -> None:
    """As meta-learning has them: torch's tracer reads the gradient of every parameter of a module that is called."""
    model = nn.Linear(2, 2, bias=False)
    weight = torch.ones(2, 2, requires_grad=True) * 2
    del model.weight
    model._parameters["weight"] = weight  # type: ignore[assignment]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with quiet_profiler(), torch.profiler.profile(with_stack=True, profile_memory=True):
            model(torch.ones(1, 2)).sum().backward()
        assert not said
        assert weight.grad is None  # the program's own look
    assert len(said) == 1
