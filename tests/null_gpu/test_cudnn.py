"""What convolutions take on the null GPU is what the real cuDNN says that it would take on that card."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tracer.null_gpu.cards import Card, devices_of
from tracer.null_gpu.cudnn import CudnnAnswers, answers_command
from tracer.null_gpu.process import environment

pytestmark = [needs_null_gpu, pytest.mark.skipif(not answers_command(), reason="no cuDNN is installed")]
CARDS = ("H100", "RTX-3060")
MIB = 1 << 20


def card(name: str) -> Card:
    found = devices_of(name).card
    assert found is not None
    return found


def said(program: str, on: str, variables: Mapping[str, str] = MappingProxyType({})) -> list[int]:
    found = environment([card(on)]) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.null_gpu.cudnn_programs", program],
        cwd=tempfile.gettempdir(), env=found, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [int(number) for number in ended.stdout.split()]


def answered(on: str) -> list[int]:
    """For the same layer, described as the rehearsal does."""
    x, w = [4, 256, 56, 56], [256, 256, 3, 3]
    problem: dict[str, Any] = {
        "dtype": "float32", "allow_tf32": True, "x": [x, [802816, 3136, 56, 1]], "w": [w, [2304, 9, 3, 1]],
        "y": [x, [802816, 3136, 56, 1]], "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1],
    }  # fmt: skip
    with CudnnAnswers(card(on)) as cudnn:
        operations = ("forward", "backward_data", "backward_filter")
        return [cudnn.workspace_bytes({**problem, "operation": operation}) for operation in operations]


def test_workspaces_are_cudnns_own_answer_for_the_card() -> None:
    sizes = {name: said("workspaces", name) for name in CARDS}
    assert sizes == {name: [size for size in answered(name) if size] for name in CARDS}
    assert sizes["H100"] != sizes["RTX-3060"]
    assert max(sizes["H100"]) > MIB


@pytest.mark.slow
def test_a_forked_process_and_its_child_ask_for_themselves() -> None:
    assert said("workspaces_of_a_forked_child", "H100") == said("workspaces", "H100")


@pytest.mark.slow
def test_with_benchmark_all_engines_are_tried() -> None:
    assert max(said("workspaces_of_the_fastest", "H100")) > max(answered("H100"))


@pytest.mark.slow
def test_where_memory_ends_the_next_engine_is_taken() -> None:
    """Weight, input and output are 26.75 MiB, the first engine's workspace as much again; the limit is 50."""
    first = answered("H100")[0]
    peak, version = said("next_engine_where_memory_ends", "H100")
    assert version >= 90800
    assert first + 26 * MIB > 50 * MIB > peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "sizes"),
    [
        ({"NULL_GPU_CUDNN": ""}, []),
        ({"NULL_GPU_CUDNN": "/bin/false"}, []),
        ({"NULL_GPU_CUDNN": "/no/such/program"}, []),
        ({"NULL_GPU_CUDNN_WORKSPACE": "3000000"}, [3000000] * 3),
    ],
    ids=["without", "ends", "missing", "set"],
)
def test_where_cudnn_cannot_be_asked_there_is_one_engine(variables: dict[str, str], sizes: list[int]) -> None:
    assert said("workspaces", "H100", variables) == sizes
