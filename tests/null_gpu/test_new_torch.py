"""What is said of a torch that is laid out otherwise than those that were tried."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.null_gpu.started import needs_null_gpu
from tracer.null_gpu import torch_symbols
from tracer.null_gpu.build import torch_folder
from tracer.null_gpu.torch_symbols import other_fat_binaries

HEADER = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 512)
ENTRY = struct.pack("<HHIQIIHHI", 2, 257, 64, 400, 400, 0, 8, 1, 90)


@needs_null_gpu
def test_this_torchs_fat_binaries_are_read() -> None:
    assert other_fat_binaries(torch_folder()) is None


@pytest.mark.parametrize(
    ("begin", "is_said"),
    [
        (HEADER + ENTRY, False),
        (b"", False),
        (b"\0\0\0\0" + HEADER[4:] + ENTRY, True),
        (HEADER + ENTRY[:-4] + b"\0\0\0\0", True),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 24, 512) + ENTRY, True),
    ],
)
def test_another_layout_is_said_with_its_section(begin: bytes, is_said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_symbols, "read_section", lambda path, name, most: begin)
    problem = other_fat_binaries(Path())
    assert (problem is not None and ".nv_fatbin" in problem) == is_said
