"""cuDNN asked in a process of its own: the problems put to it, its answers, and what happens without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tracer.errors import RehearsalError
from tracer.null_gpu import cudnn as asked_cudnn
from tracer.null_gpu.cards import H100, devices_of
from tracer.null_gpu.cudnn import CudnnAnswers, library_folders
from tracer.rehearsal.device_memory import reserved_spread
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.results.prediction import Prediction
from tracer.sessions.trials.rehearsed_prediction import predict
from tracer.workloads.module_steps import StepWorkload

MIB = 1 << 20
has_cudnn = any(list(folder.glob("libcudnn.so*")) for folder in library_folders())
needs_cudnn = pytest.mark.skipif(not has_cudnn, reason="no cuDNN is installed")


class Written:
    """Stands in for cuDNN: writes the problems down and takes a byte for each element of the input."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []

    def workspace_bytes(self, problem: dict[str, Any]) -> int:
        self.problems.append(problem)
        return torch.Size(problem["x"][0]).numel()


def rehearsed(module: nn.Module, x_of: Any, cudnn: Any) -> Rehearsal:
    def step() -> None:
        x: Tensor = x_of()
        module(x).sum().backward()

    workload = StepWorkload(step, module, None, torch.device("cpu"))
    return rehearse(workload, num_steps=1, cudnn=cudnn)


def test_problems_of_a_convolution() -> None:
    cudnn = Written()
    module = nn.Conv2d(3, 8, (3, 5), stride=2, padding=(1, 2), dilation=1)
    rehearsal = rehearsed(module, lambda: torch.randn(2, 3, 16, 32, requires_grad=True), cudnn)
    assert [each["operation"] for each in cudnn.problems] == ["forward", "backward_data", "backward_filter"]
    for each in cudnn.problems:
        assert each["x"] == [[2, 3, 16, 32], [1536, 512, 32, 1]]
        assert each["w"] == [[8, 3, 3, 5], [45, 15, 5, 1]]
        assert each["y"] == [[2, 8, 8, 16], [1024, 128, 16, 1]]
        assert (each["padding"], each["stride"], each["dilation"]) == ([1, 2], [2, 2], [1, 1])
    # One workspace for each of its convolutions, freed before the next result is made, as the allocator sees it.
    sizes, taken, weight = rehearsal.requests.size_bytes.tolist(), 2 * 3 * 16 * 32, 4 * 8 * 3 * 3 * 5
    assert sizes.count(taken) == sizes.count(-taken) == 3
    begin = len(sizes) - 1 - sizes[::-1].index(weight) - 3
    assert sizes[begin : begin + 6] == [4 * taken, taken, -taken, weight, taken, -taken]


def test_channels_last_and_one_axis() -> None:
    cudnn = Written()
    last = nn.Conv2d(4, 8, 1).to(memory_format=torch.channels_last)
    rehearsed(last, lambda: torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last), cudnn)
    assert cudnn.problems[0]["x"] == [[2, 4, 5, 6], [120, 1, 24, 4]]
    cudnn = Written()
    rehearsed(nn.Conv1d(4, 8, 3, padding=1), lambda: torch.randn(2, 4, 10), cudnn)
    assert cudnn.problems[0]["x"] == [[2, 4, 1, 10], [40, 10, 10, 1]]
    assert cudnn.problems[0]["w"] == [[8, 4, 1, 3], [12, 3, 3, 1]]
    assert (cudnn.problems[0]["padding"], cudnn.problems[0]["stride"]) == ([0, 1], [1, 1])


def test_deterministic_engines_are_asked_for_where_the_program_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_wanted in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", is_wanted)
        cudnn = Written()
        rehearsed(nn.Conv2d(4, 8, 3), lambda: torch.randn(2, 4, 10, 10), cudnn)
        assert [problem["deterministic"] for problem in cudnn.problems] == [is_wanted] * 2


def test_transposed_convolutions_are_the_others_gradients() -> None:
    cudnn = Written()
    rehearsed(nn.ConvTranspose2d(4, 8, 2, stride=2), lambda: torch.randn(2, 4, 5, 5, requires_grad=True), cudnn)
    assert [each["operation"] for each in cudnn.problems] == ["backward_data", "forward", "backward_filter"]
    for each in cudnn.problems:
        assert (each["x"][0], each["w"][0], each["y"][0]) == ([2, 8, 10, 10], [4, 8, 2, 2], [2, 4, 5, 5])


def test_depthwise_convolutions_are_torchs_own_unless_channels_last() -> None:
    cudnn = Written()
    module = nn.Conv2d(6, 6, 3, groups=6)
    rehearsed(module, lambda: torch.randn(2, 6, 8, 8), cudnn)
    assert cudnn.problems == []
    rehearsed(module, lambda: torch.randn(2, 6, 8, 8).to(memory_format=torch.channels_last), cudnn)
    assert [each["operation"] for each in cudnn.problems] == ["forward", "backward_filter"]


def test_nothing_is_taken_where_nobody_is_asked() -> None:
    asked, alone = (
        rehearsed(nn.Conv2d(3, 8, 3), lambda: torch.randn(2, 3, 16, 16), cudnn) for cudnn in (Written(), None)
    )
    assert len(asked.requests.size_bytes) == len(alone.requests.size_bytes) + 4


def test_what_a_workspace_may_be_is_in_the_range_and_not_in_the_answer() -> None:
    """x [2, 3, 256, 256]: 1.5 MiB; y [2, 32, 256, 256]: 16 MiB; w 3,456 bytes: copies, in forward and backward."""
    alone = rehearsed(nn.Conv2d(3, 32, 3, padding=1, bias=False), lambda: torch.randn(2, 3, 256, 256), None)
    requests = alone.requests
    of_copies = (2 * 3 * 65_536 + 32 * 27 + 2 * 32 * 65_536) * 4
    assert requests.undecided_bytes[requests.undecided_bytes > 0].tolist() == [of_copies] * 2
    assert requests.in_backward[requests.undecided_bytes > 0].tolist() == [False, True]
    assert of_copies not in requests.size_bytes.tolist()
    settled = replace(requests, undecided_bytes=np.zeros_like(requests.undecided_bytes))
    spread, narrow = (reserved_spread(each, alone.memory) for each in (requests, settled))
    assert spread.low_bytes == narrow.low_bytes
    assert spread.high_bytes > narrow.high_bytes


def test_without_cudnn_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_cudnn, "library_folders", list)
    with CudnnAnswers(devices_of("RTX-3060").card) as cudnn:
        assert cudnn.version == 0
        assert cudnn.workspace_bytes({"operation": "forward"}) == 0


def test_the_child_starts_with_the_first_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_cudnn, "answers_command", lambda: ["no such program"])

    def predicted(module: nn.Module, *sizes: int) -> Prediction:
        step = lambda: module(torch.randn(*sizes, device="cpu")).sum().backward()  # noqa: E731
        return predict(lambda: StepWorkload(step, module, None, torch.device("cpu")), card=H100)

    assert predicted(nn.Linear(4, 4), 8, 4).need.peak_requested_bytes > 0
    with pytest.raises(RehearsalError, match="no such program"):
        predicted(nn.Conv2d(3, 4, 3), 2, 3, 8, 8)


def test_a_child_that_ends_is_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "libcudnn.so.9").write_bytes(b"no library")
    monkeypatch.setattr(asked_cudnn, "library_folders", lambda: [tmp_path])
    with CudnnAnswers(devices_of("RTX-3060").card) as cudnn:
        assert cudnn.version == 0


@needs_cudnn
def test_cudnn_answers_for_cards_that_are_not_here() -> None:
    def problem(channels: int) -> dict[str, Any]:
        sizes = [8, channels, 56, 56]
        strides = [channels * 3136, 3136, 56, 1]
        return {
            "operation": "forward", "dtype": "float32", "allow_tf32": True, "x": [sizes, strides],
            "w": [[channels, channels, 3, 3], [9 * channels, 9, 3, 1]], "y": [sizes, strides], "padding": [1, 1],
            "stride": [1, 1], "dilation": [1, 1],
        }  # fmt: skip

    answers = {}
    for name in ("RTX-3060", "H100"):
        with CudnnAnswers(devices_of(name).card) as cudnn:
            assert cudnn.version >= 90800
            answers[name] = [cudnn.workspace_bytes(problem(channels)) for channels in (3, 64, 128)]
            assert cudnn.workspace_bytes(problem(64)) == answers[name][1]
            assert cudnn.workspace_bytes({**problem(64), "w": [[64, 7, 3, 3], [63, 9, 3, 1]]}) == 0  # no such problem
    # some engine somewhere works in another order of axes, and takes at least a copy of the input for that
    assert max(map(max, answers.values())) >= 8 * 64 * 56 * 56 * 4
    assert all(size < 1 << 32 for sizes in answers.values() for size in sizes)
