"""The command line on a backend that it was told to import: the same files and the same screen as on any device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator.build import missing_tool
from tracer.commands.workload_options import device_of_rank

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--batch-size", "2", "--hidden-channels", "8", "--data-size", "16", "--n-modes", "4", "--n-layers", "1"]
SHORT = ["--n-active-steps", "2", "--n-repeats", "1"]
FILES = {
    *("max_mem.txt", "memory_timeline.html", "peak.json", "memory_snapshot.pkl", "cuda_timing.txt", "trace.json.gz"),
    *("memory_report.sqlite", "run_time_report.sqlite", "recording.npz"),
}


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    if (reason := missing_tool()) is not None:
        pytest.skip(reason)
    command = [sys.executable, str(ROOT / "main.py"), *map(str, arguments)]
    variables = os.environ | {"KINETO_LOG_LEVEL": "99", "COLUMNS": "120"} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables)


@pytest.mark.slow
def test_a_registered_backend_gives_every_file_and_the_same_screen(tmp_path: Path) -> None:
    backend = ["--import", "tests.accelerator.pretend", "--device", "pretend:1"]
    ended = run(*backend, *SMALL, *SHORT, "--trace", "--keep-recording", "--save-dir", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in tmp_path.iterdir()} == FILES
    peak = json.loads((tmp_path / "peak.json").read_text())
    assert peak["device"] == "pretend:1"
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] > 0
    assert peak["unexplained_bytes"] == 0
    (lacks,) = (line for line in ended.stderr.splitlines() if "does not offer" in line)
    assert "kernels" in lacks
    for words in ("on pretend:1", "Requested:", "Reserved from the driver:", "What filled it", "Time of a step on"):
        assert words in ended.stdout
    assert "ms on PRETEND" in (tmp_path / "cuda_timing.txt").read_text()


@pytest.mark.slow
def test_a_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = run("--device", "xpu:0", *SMALL, "--save-dir", tmp_path / "a")
    assert ended.returncode == 1
    assert "There is no device xpu:0; torch sees no device of type xpu." in ended.stderr
    ended = run("--import", "no_such_backend", *SMALL, "--save-dir", tmp_path / "b")
    assert ended.returncode == 1
    assert "--import no_such_backend: No module named 'no_such_backend'." in ended.stderr
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("visible", "text", "expected"),
    [(4, "cuda:0", "cuda:3"), (1, "cuda:0", "cuda:0"), (4, "cuda", "cuda:3"), (0, "cuda:0", "cuda:3")],
)
def test_each_rank_has_its_own_device_unless_it_sees_one_only(
    monkeypatch: pytest.MonkeyPatch, visible: int, text: str, expected: str
) -> None:
    """Some launchers show each rank the device that is its own, and no other."""
    monkeypatch.setattr("tracer.capture.device.devices.num_devices", lambda device: visible)
    assert device_of_rank(text, 3) == expected
