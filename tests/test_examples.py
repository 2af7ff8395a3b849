"""Every example runs as it stands, in a process of its own, from anywhere, and leaves its files."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import run_python

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {"trainer": ("transformers", "accelerate"), "lightning_module": ("lightning",)}


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    finished = run_python(*command, folder=folder, variables=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


def rows_sum(file: Path) -> bool:
    peak = json.loads(file.read_text())
    return sum(row["bytes"] for row in peak["rows"]) == peak["peak_bytes"] == peak["allocator_peak_bytes"] > 0


def test_each_example_is_tested() -> None:
    """tests/test_documents.py runs those that take a null GPU, by their commands in README.md and docs/recipes.md."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"plain_loop", "torchrun", "fsdp_job", "gpt", *NEEDS}


@pytest.mark.parametrize("name", ["plain_loop", *(pytest.param(name, marks=pytest.mark.slow) for name in NEEDS)])
def test_an_example_explains_its_peak(tmp_path: Path, name: str) -> None:
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    finished = run(str(EXAMPLES / f"{name}.py"), "results", folder=tmp_path)
    assert "Peak: " in finished.stdout
    assert rows_sum(tmp_path / "results" / "peak.json")
    assert {path.name for path in tmp_path.iterdir()} == {"results"}


@pytest.mark.slow
def test_ranks_write_their_own_files_and_a_summary(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished = run(*launcher, str(EXAMPLES / "torchrun.py"), "results", "fsdp", folder=tmp_path)
    results = tmp_path / "results"
    assert rows_sum(results / "rank0" / "peak.json")
    assert rows_sum(results / "rank1" / "peak.json")
    summary = json.loads((results / "ranks.json").read_text())
    peaks = [json.loads((results / f"rank{rank}" / "peak.json").read_text())["peak_bytes"] for rank in (0, 1)]
    # Rank 1 has batches twice as large; but gloo's threads hold buffers for as long as they happen to take, which for
    # the small shards of FSDP can outweigh that.
    assert summary["worst_rank"] == peaks.index(max(peaks))
    assert summary["spread_bytes"] > 0
    assert summary["missing"] == []
    assert {"INPUT"} <= set(summary["differences"])
    assert (results / "ranks.txt").read_text() in finished.stdout
