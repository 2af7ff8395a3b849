"""Launchers in the place of a script: which script they start, as how many processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions
from tracer.commands.script import Script
from tracer.errors import UsageError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = {"RANK": "1", "LOCAL_RANK": "1"}
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.chdir(tmp_path)
    return found


TRAIN = Script("train.py", ["--lr", "1"], is_module=False)
LOCAL = Script("train.py", ["--local_rank=1", "--lr", "1"], is_module=False)


@pytest.mark.parametrize(
    ("words", "is_module", "expected"),
    [
        ("train.py --lr 1", False, TRAIN),
        ("train.py torchrun", False, Script("train.py", ["torchrun"], is_module=False)),
        ("torchrun --nproc_per_node 2 train.py --lr 1", False, TRAIN),
        ("/bin/torchrun --standalone --nnodes=1 --nproc-per-node=2 train.py --lr 1", False, TRAIN),
        ("torchrun --nproc-per-node=gpu train.py --lr 1", False, TRAIN),
        (
            "torchrun --nproc-per-node 1 --nnodes 2:4 -m pkg.train --lr 1",
            False,
            Script("pkg.train", ["--lr", "1"], True),
        ),
        ("torch.distributed.run --nproc-per-node 2 train.py --lr 1", True, TRAIN),
        ("torch.distributed.launch --use-env --nproc_per_node 2 train.py --lr 1", True, TRAIN),
        ("accelerate launch --multi_gpu --num_processes 2 train.py --lr 1", False, TRAIN),
        ("deepspeed --num_gpus 2 train.py --lr 1", False, LOCAL),
        ("deepspeed --no_local_rank train.py --lr 1", False, TRAIN),
        ("mpirun -np 2 -x PATH python -u train.py --lr 1", False, TRAIN),
        ("mpiexec -n 2 python train.py --lr 1", False, TRAIN),
    ],
)
def test_the_script_behind_a_launcher(words: str, is_module: bool, expected: Script) -> None:
    script, *arguments = words.split()
    assert script_named(OnOptions(on="2xh100"), script, arguments, is_module=is_module) == expected


@pytest.mark.parametrize(
    ("on", "words", "says", "hint"),
    [
        (None, "torchrun --nproc-per-node 2 train.py", "does not see", "torchrun ... -m tracer run train.py"),
        (None, "mpirun -np 2 python train.py", "does not see", "mpirun ... python -m tracer run train.py"),
        ("h100:40GiB", "torchrun --nproc-per-node 2 train.py", "starts 2 processes", "--on 2xh100:40GiB"),
        ("8xh100", "torchrun train.py", "starts 1 process, and --on 8xh100 names 8 GPUs", "--on h100,"),
        ("2xh100", "accelerate launch --use_fsdp train.py", "--use-fsdp of accelerate launch is not read", "itself"),
        ("2xh100", "torchrun --nproc-per-node 2 train", "no script of Python's", "train.py"),
    ],
)
def test_what_cannot_be_run_is_a_sentence(on: str | None, words: str, says: str, hint: str) -> None:
    script, *arguments = words.split()
    with pytest.raises(UsageError, match=says) as error:
        script_named(OnOptions(on=on), script, arguments, is_module=False)
    assert hint in str(error.value.hint)


def test_one_process_has_the_variables_that_launchers_set(environment: dict[str, str]) -> None:
    environment.clear()
    script_named(OnOptions(on="h100"), "torchrun", ["train.py"], is_module=False)
    assert {name: environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")} == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip


def test_ranks_of_mpi_have_its_variables(environment: dict[str, str]) -> None:
    script_named(OnOptions(on="2xh100"), "mpirun", ["-np", "2", "python", "train.py"], is_module=False)
    assert (environment["OMPI_COMM_WORLD_RANK"], environment["PMI_RANK"]) == ("1", "1")


def test_precision_of_accelerate_is_told_to_its_processes(environment: dict[str, str]) -> None:
    words = ["launch", "--mixed_precision=bf16", "train.py"]
    script_named(OnOptions(on="2xh100"), "accelerate", words, is_module=False)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
