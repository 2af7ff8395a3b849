"""What is read of shared libraries is what binutils says of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tracer.null_gpu.elf import read_library


def test_other_files_are_none(tmp_path: Path) -> None:
    for content in (b"", b"\x7fEL", b"#!/bin/sh\n" * 10, b"\x7fELF\x01\x01" + bytes(100)):
        (tmp_path / "file").write_bytes(content)
        assert read_library(tmp_path / "file") is None


def test_a_library_that_is_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x7fELF\x02\x01" + bytes(34) + b"\xff" * 30)
    assert read_library(tmp_path / "file") is None


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("readelf") is None, reason="needs cc and readelf")
def test_a_library(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int wanted(void); double sin(double); int made(void) { return wanted() + sin(1); }")
    path = tmp_path / "a.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", tmp_path / "a.c", "-o", path, "-lm"], check=True)
    library = read_library(path)
    assert library is not None
    assert {"wanted", "sin"} <= library.undefined and "made" in library.defined
    assert "made" not in library.undefined and "libm.so.6" in library.needed and ".dynsym" in library.sections
    lines = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    said = {line.split()[7].split("@")[0] for line in lines.splitlines() if " UND " in line and len(line.split()) > 7}
    assert library.undefined == said
