"""cuDNN asked for a card that is not here: in a child process, by a description of the card.

cuDNN 9.8 and newer plan for a device that is only described. The version asked is the one that torch here would load,
or that in the folder which TORCH_TIMELINE_CUDNN names: another one chooses other engines for half of all convolutions,
so no answer holds for another installation.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tracer.errors import TracerError
from tracer.null_gpu.cards import H100, Card

FOLDER_VARIABLE = "TORCH_TIMELINE_CUDNN"
_PROGRAM = Path(__file__).with_name("cudnn_answers.py")
_PLAIN_CONVOLUTION = {
    "operation": "forward", "dtype": "float32", "allow_tf32": True, "padding": [0, 0], "stride": [1, 1],
    "dilation": [1, 1], "x": [[8, 64, 8, 8], [4096, 64, 8, 1]], "w": [[64, 64, 1, 1], [64, 1, 1, 1]],
    "y": [[8, 64, 8, 8], [4096, 64, 8, 1]],
}  # fmt: skip


def device_properties(card: Card) -> dict[str, Any]:
    """A card as cuDNN has it described. Clocks, caches and numbers of the driver change no answer and are made up."""
    major, minor = card.capability
    return {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": card.num_sms,
        "smCountOrigin": 0,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": card.shared_memory_bytes,
        "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": card.blocks_per_sm,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": card.threads_per_sm,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "smClockRateKHz": 1700000,
        "memClockRateKHz": 7000000,
        "l2CacheSize": 4 << 20,
        "deviceName": card.label,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "cudaDeviceId": 0,
        "totalGlobalMem": card.memory_bytes,
    }


def library_folders() -> list[Path]:
    """Folders with the CUDA libraries that torch loads; none in a build for the CPU."""
    package = importlib.util.find_spec("nvidia")
    roots = package.submodule_search_locations if package is not None else None
    return sorted({path.parent for root in roots or () for path in Path(root).glob("*/lib/*.so*")})


def answers_command() -> list[str]:
    """The program that answers and its arguments; none where there is no cuDNN.

    Raises:
        TracerError: TORCH_TIMELINE_CUDNN names a folder without a cuDNN that could be asked.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return _command_in(Path(named).resolve())
    folders = library_folders()
    return _command(folders) if _has(folders, "libcudnn.so*") else []


@cache
def _command_in(named: Path) -> list[str]:
    """Command of the cuDNN in a folder, or installed there by `pip install --target`, once it has answered a question.

    One that finds a cuBLAS of another CUDA says its version and then ends with the first question.
    """
    folders = [named, *sorted({path.parent for path in named.glob("nvidia/*/lib/*.so*")})]
    if not _has(folders, "libcudnn.so*"):
        raise TracerError(
            f"{FOLDER_VARIABLE} names {named}, and there is no libcudnn.so in it.",
            hint=f"Install one there: pip install --target {named} nvidia-cudnn-cu13.",
        )
    if not _has(folders, "libcublasLt.so*"):  # cuDNN ends the process without it
        folders += [folder for folder in library_folders() if not _has([folder], "libcudnn.so*")]
    command = _command(folders)
    lines = f"{json.dumps(device_properties(H100))}\n{json.dumps(_PLAIN_CONVOLUTION)}\n"
    ended = subprocess.run(command, env=_environment(), input=lines, capture_output=True, text=True, check=False)
    if len(answers := ended.stdout.split()) < 2 or int(answers[1]) < 0:
        raise TracerError(
            f"The cuDNN in {named} cannot be asked: it is older than 9.8, or a library is missing that it loads.",
            hint="Install a newer one with its cuBLAS: pip install --target FOLDER nvidia-cudnn-cu13.",
        )
    return command


def _command(folders: Sequence[Path]) -> list[str]:
    return [sys.executable, str(_PROGRAM), *map(str, folders)]


def _has(folders: Sequence[Path], pattern: str) -> bool:
    return any(next(folder.glob(pattern), None) is not None for folder in folders)


def _environment() -> dict[str, str]:
    """Without the null GPU's libraries, which bear the names of the real ones."""
    others = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**others, "NULL_GPU_ABSENT": "1"}


def answered_version() -> int:
    """Version, such as 92600, of the cuDNN that gave convolutions' workspaces in this process; 0 for none."""
    answered = getattr(ctypes.CDLL(None), "null_gpu_cudnn_version", None)
    return int(answered()) if answered is not None else 0


def said_of_workspaces(version: int, card: str) -> str:
    """A sentence on which cuDNN gave convolutions' workspaces."""
    major, minor = divmod(version // 100, 100)
    return (
        f"Convolutions' workspaces are what cuDNN {major}.{minor} said that it would take on {card}; another version "
        "chooses otherwise."
    )
