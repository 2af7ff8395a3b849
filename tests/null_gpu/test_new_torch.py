"""What is said of a torch that calls or is laid out otherwise than those that were tried."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks.torch_versions import Answers, read_doctor, read_results, sentences, table
from tests.null_gpu.started import needs_null_gpu
from tracer.null_gpu import torch_symbols
from tracer.null_gpu.build import torch_folder
from tracer.null_gpu.torch_symbols import other_fat_binaries, read_prototypes, unanswered

HEADERS = """
cudaError_t cudaCountOf(unsigned *count);
cudaError_t cudaSetTo(int value);
cusolverStatus_t cusolverDnSpotrf(cusolverDnHandle_t handle, int *info);
"""
HEADER = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 512)
ENTRY = struct.pack("<HHIQIIHHI", 2, 257, 64, 400, 400, 0, 8, 1, 90)


def test_a_new_call_that_returns_something_is_named() -> None:
    called = {"cudaCountOf", "cudaSetTo", "cusolverDnSpotrf", "cudaNotDeclared"}
    assert unanswered(read_prototypes(HEADERS), called) == {"cudaCountOf"}
    assert unanswered(read_prototypes(HEADERS), {"cudaSetTo"}) == set()


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


def test_versions_stand_side_by_side_with_what_breaks(tmp_path: Path) -> None:
    file = tmp_path / "tests.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="tests.null_gpu.test_a" name="test_one_holds"/>'
        '<testcase classname="tests.null_gpu.test_a" name="test_two_hold"><failure message="AssertionError: 1&#10;x"/>'
        '</testcase><testcase classname="tests.null_gpu.test_a" name="test_s"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    passed, failures = read_results(file)
    assert passed == {"tests/null_gpu/test_a.py": 1}
    broken = read_doctor('{"checks": [{"name": "card", "status": "FAIL", "sentence": "No."}]}')
    old = Answers("2.11.0", {"tests/null_gpu/test_a.py": 2}, {}, frozenset({"cudaA"}))
    new = Answers("3.0.0", passed, failures | broken, frozenset({"cudaA", "cudaB"}))
    assert table([old, new]).splitlines() == [
        "| assumption | 2.11.0 | 3.0.0 |",
        "| --- | --- | --- |",
        "| doctor: card | PASS | **FAIL** |",
        "| tests/null_gpu/test_a.py | 2 | **1 of 2 fail** |",
    ]
    assert list(sentences([old, new])) == [
        "3.0.0: tests/null_gpu/test_a.py: two hold: AssertionError: 1",
        "3.0.0: doctor: card: No.",
        "3.0.0: calls cudaB, which torch 2.11.0 does not; its answer stays unset.",
    ]
