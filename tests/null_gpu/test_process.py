"""How a process runs on the null GPU."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu, null_gpu_library
from tracer.errors import NullGpuError
from tracer.null_gpu import nvidia_smi, process
from tracer.null_gpu.build import libraries
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment, is_active, load, restart_on
from tracer.null_gpu.torch_symbols import read_library
from tracer.units import GIB


def test_this_process_is_not_on_it() -> None:
    assert not is_active()


def test_it_must_come_before_torch() -> None:
    with pytest.raises(NullGpuError, match="torch has been imported already"):
        load([H100])


def test_no_card() -> None:
    with pytest.raises(NullGpuError, match="at least one card"):
        process._of_cards([])


def test_too_many_cards() -> None:
    with pytest.raises(NullGpuError, match="16 null GPUs at most, and 17 are asked for"):
        process._of_cards([H100] * 17)


def test_address_space_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (90 * GIB, 90 * GIB))
    with pytest.raises(NullGpuError, match=r"may use 90.00 GiB of address space.* 79.10 GiB") as caught:
        environment([H100])
    assert "ulimit -v" in caught.value.hint


@needs_null_gpu
def test_the_variables() -> None:
    small = replace(H100, name="Small", memory_bytes=GIB, capability=(8, 6))
    found = environment([H100, small], {"PATH": "/bin", "LD_PRELOAD": "/other.so", "HOME": "/home"})
    folder = null_gpu_library().parent
    assert found["NULL_GPU_NAME"] == "NVIDIA H100 80GB HBM3;Small" and found["NULL_GPU_COUNT"] == "2"
    assert found["NULL_GPU_CAPABILITY"] == "9.0;8.6" and found["NULL_GPU_MEMORY"].endswith(f";{GIB}")
    assert found["PATH"] == f"{folder / 'bin'}:/bin" and found["TRITON_LIBCUDA_PATH"] == str(folder)
    assert found["LD_PRELOAD"].startswith(f"{folder}/libnull_gpu.so:")
    assert found["LD_PRELOAD"].endswith(":/other.so") and "/home" in found["HOME"]
    assert environment([H100], found)["LD_PRELOAD"] == found["LD_PRELOAD"], "once, also where it was already"


@needs_null_gpu
def test_every_library_is_there_and_needs_the_first() -> None:
    first, *others = libraries(null_gpu_library())
    assert read_library(first) is not None and len(others) > 10
    for path in others:
        library = read_library(path)
        assert library is not None and "libnull_gpu.so" in library.needed


@needs_null_gpu
def test_a_command_starts_again_with_its_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tracer.null_gpu.cards import H100\nfrom tracer.null_gpu.process import is_active, restart_on\n"
        "print('started', is_active(), flush=True)\nrestart_on([H100])\n"
        "print(is_active(), sys.argv[1:], sys.flags.utf8_mode, 'torch' in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "utf8", program, "--epochs", "a b"], env=dict(os.environ), capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == ["started False", "started True", "True ['--epochs', 'a b'] 1 False"]


@needs_null_gpu
@pytest.mark.slow  # a process that loads torch, as all of tests/null_gpu/test_programs.py do behind a restart
def test_it_is_loaded_where_torch_is_not() -> None:
    program = (
        "from tracer.null_gpu.cards import H100\nfrom tracer.null_gpu.process import is_active, load\n"
        "load([H100]); load([H100])\nimport torch\n"
        "print(is_active(), torch.cuda.device_count(), torch.arange(3).cuda().tolist())"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "True 1 [0, 1, 2]\n"


def test_nothing_is_restarted_where_it_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "is_active", lambda: True)
    monkeypatch.setattr(process, "environment", lambda cards: pytest.fail("restarted"))
    restart_on([H100])
    load([H100])


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["null GPU: memory is counted, nothing is computed", "0  A card  80000 MiB", "1  B card  1024 MiB"]),
        (["-L"], ["GPU 0: A card (UUID: GPU-6e756c6c-2d67-7075-2d64-657669636530)",
                  "GPU 1: B card (UUID: GPU-6e756c6c-2d67-7075-2d64-657669636531)"]),
        (["--query-gpu=index,memory.total,power.draw", "--format=csv"],
         ["index, memory.total, power.draw", "0, 80000 MiB, [N/A]", "1, 1024 MiB, [N/A]"]),
        (["--query-gpu=memory.free", "--format=csv,noheader,nounits"], ["80000", "1024"]),
    ],
)  # fmt: skip
def test_nvidia_smi(monkeypatch: pytest.MonkeyPatch, arguments: list[str], lines: list[str]) -> None:
    for name, value in {
        "NAME": "A card;B card", "MEMORY": f"{80000 << 20};{1 << 30}", "CAPABILITY": "9.0;8.6", "COUNT": "2"
    }.items():  # fmt: skip
        monkeypatch.setenv(f"NULL_GPU_{name}", value)
    assert nvidia_smi.answer(arguments) == lines


# ---- one memory of a card for all processes of a run: what is left, what fails, and what one that is gone still holds


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
def test_nvml_lists_the_processes_of_a_card() -> None:
    run("listed")


@needs_null_gpu
def test_of_killed_processes_no_memory_is_counted() -> None:
    run("kills", "5")


@needs_null_gpu
def test_a_fork_is_a_trial_of_its_own() -> None:
    run("forks")


@needs_null_gpu
@pytest.mark.slow
def test_a_tensor_that_another_process_is_given_is_counted_once() -> None:
    run("tensors")
