"""What convolutions take on the null GPU is what the real cuDNN says that it would take on that card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.null_gpu.started import needs_null_gpu, run_program
from tracer.errors import TracerError
from tracer.null_gpu.cards import Card, devices_of
from tracer.null_gpu.cudnn import FOLDER_VARIABLE, answers_command, device_properties, library_folders
from tracer.null_gpu.process import environment

pytestmark = [needs_null_gpu, pytest.mark.skipif(not answers_command(), reason="no cuDNN is installed")]
CARDS = ("H100", "RTX-3060")
MIB = 1 << 20


def card(name: str) -> Card:
    found = devices_of(name).card
    assert found is not None
    return found


def said(program: str, on: str, variables: Mapping[str, str] = MappingProxyType({})) -> list[int]:
    ended = run_program(program, cards=[card(on)], variables=variables, module="cudnn_programs")
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [int(number) for number in ended.stdout.split()]


def answered(on: str) -> list[int]:
    """Ask cuDNN itself about the same layer."""
    x, w = [4, 256, 56, 56], [256, 256, 3, 3]
    problem: dict[str, Any] = {
        "dtype": "float32", "allow_tf32": True, "x": [x, [802816, 3136, 56, 1]], "w": [w, [2304, 9, 3, 1]],
        "y": [x, [802816, 3136, 56, 1]], "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1],
    }  # fmt: skip
    operations = ("forward", "backward_data", "backward_filter")
    lines = [device_properties(card(on)), *({**problem, "operation": operation} for operation in operations)]
    without_null_gpu = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ended = subprocess.run(
        answers_command(),
        env=without_null_gpu,
        input="".join(f"{json.dumps(line)}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
    )
    version, *sizes = map(int, ended.stdout.split())
    assert version > 0
    return [max(0, size) for size in sizes]


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


@pytest.mark.slow
def test_a_named_folder_is_asked_and_not_the_one_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip lays it out, without the libraries that cuDNN loads besides: those are torch's."""
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    of_torch = next(each for each in library_folders() if list(each.glob("libcudnn.so*")))
    for path in of_torch.glob("*.so*"):
        (folder / path.name).symlink_to(path)
    expected = answered("H100")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    command = answers_command()
    assert str(folder) in command
    assert str(of_torch) not in command
    assert answered("H100") == expected
    assert environment([card("H100")])["NULL_GPU_CUDNN"].splitlines() == command


@pytest.mark.parametrize("version", [90100, 90800, 0], ids=["too old", "ends with a question", "no cuDNN"])
def test_a_named_cudnn_that_cannot_be_asked_is_an_error(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(TracerError, match=r"there is no libcudnn\.so in it"):
        environment([card("H100")])
    source = f"unsigned long cudnnGetVersion(void) {{ return {version}; }}" if version else "void other(void) {}"
    compiler = shutil.which("cc")
    assert compiler is not None  # the null GPU is built with it
    (tmp_path / "it").mkdir()
    subprocess.run(
        [compiler, "-shared", "-xc", "-", "-o", str(tmp_path / "it" / "libcudnn.so.9")],
        input=source,
        text=True,
        check=True,
    )
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "it"))
    with pytest.raises(TracerError, match=r"cannot be asked: it is older than 9\.8"):
        answers_command()
