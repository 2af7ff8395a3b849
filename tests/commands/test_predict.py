"""`predict`: what it answers, the files that it leaves, its exit status, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import main
from tests.null_gpu.started import ROOT, called, needs_null_gpu
from tracer.answers.null_run import CAVEAT
from tracer.exporters.json_documents.peak import read_peak_json
from tracer.exporters.page.html import data_of_html

GPT = ("--model", "models.gpt:build")
ON = ("--on", "24GiB")


@cache
def predict(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask in a process of its own; what several tests ask is asked once."""
    return called(ROOT, "predict", *arguments)


def as_json(*arguments: str) -> dict[str, Any]:
    result = predict(*arguments, "--json")
    assert result.returncode in (0, 3), result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@needs_null_gpu
@pytest.mark.slow  # tests/on_null_gpu/test_predictions.py
def test_it_says_what_a_step_needs_and_what_fills_it() -> None:
    said = as_json(*GPT)
    assert said["fits"] is None and said["device"] == "cuda:0"
    assert said["peak_requested_bytes"] <= said["peak_allocated_bytes"] <= said["peak_reserved_bytes"]
    assert (
        sum(row["bytes"] for row in said["rows"]) == said["peak_allocated_bytes"] == sum(said["by_category"].values())
    )
    assert {"PARAMETER", "OPTIMIZER_STATE", "ACTIVATION"} <= said["by_category"].keys()


@needs_null_gpu
def test_it_fits_or_it_does_not() -> None:
    wide = predict(*GPT, "--on", "RTX-4090")
    assert wide.returncode == 0 and "Fits in RTX-4090 (23.64 GiB)" in wide.stdout
    tight = predict(*GPT, "--on", "720MiB")
    assert tight.returncode == 3 and "Does not fit in 720.00 MiB" in tight.stdout and "gpt.py:" in tight.stdout


@needs_null_gpu
@pytest.mark.slow  # of a run, as of main.py with --on
def test_the_files_are_those_of_a_run(tmp_path: Path) -> None:
    said = as_json(*GPT, "--save-dir", str(tmp_path))
    peak = read_peak_json(tmp_path / "peak.json")
    assert peak.bytes == said["peak_allocated_bytes"] and peak.device == "cuda:0"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"max_mem.txt", "memory_report.sqlite", "memory_snapshot.pkl", "memory_timeline.html"} <= written
    assert "cuda_timing.txt" not in written
    (page,) = data_of_html((tmp_path / "memory_timeline.html").read_text(encoding="utf-8"))["pages"]
    assert (page["title"], page["caveat"]) == ("Predicted memory of a training step", CAVEAT)
    # The answer comes first, and nothing that was not computed has a time.
    assert page["said"][0].startswith(("Fits in ", "Does not fit in ", "Needs "))
    assert page["axis"] == "entry" and not any(section["title"] == "Time" for section in page["sections"])


@needs_null_gpu
@pytest.mark.slow
def test_by_its_law_the_largest_batch_fits_and_one_more_does_not(tmp_path: Path) -> None:
    layer = ("--model", "torch.nn:Linear", "--model-arg", "in_features=512", "--model-arg", "out_features=512",
             "--input", "512", "--optimizer", "sgd", "--on", "736MiB")  # fmt: skip
    law = predict(*layer, "--law", "--vary", "batch 64..16384", "--save-dir", str(tmp_path))
    assert law.returncode == 0, law.stderr
    document = json.loads((tmp_path / "law.json").read_text())
    for check in document["checks"]:
        said = check["said"]
        assert [check[name] for name in ("allocated_bytes", "reserved_bytes")] == [
            said[name] for name in ("allocated_bytes", "reserved_bytes")
        ]
    assert len(document["checks"]) == 2 and document["num_runs"] <= 12
    ask = f"import sys; sys.path[:0] = ['.']; import law; print(law.largest(capacity_bytes={36 << 20}))"
    asked = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    largest = int(asked.stdout)
    assert f"The largest batch that fits on a GPU, 736.00 MiB is {largest:,}." in law.stdout
    for size, fits in ((largest, True), (largest + 1, False)):
        assert as_json(*layer, "--batch-size", str(size))["fits"] is fits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Neither a model nor a script is named"),
        (("--batch-size", "4", "--on", "24GiB"), "Neither a model nor a script is named"),
        (("--tokens", "8"), "--tokens works only with --hf-config"),
        ((*GPT, "--on", "a lot"), "There is no card a lot in the table"),
        ((*GPT, "--on", "MI300X"), "MI300X is AMD's, and what answers here is torch's code for NVIDIA's cards"),
        ((*GPT, "--on", "Radeon RX 7900"), "Radeon RX 7900 is AMD's"),
        ((*GPT, "--on", "24"), "24 has no unit"),
        (("--law", "--vary", "batch", *GPT), "--law works only with --on"),
        (("--law", *GPT, *ON), "--law and --vary work only together"),
        (("--vary", "batch", *GPT, *ON), "--law and --vary work only together"),
        (("--law", "--vary", "batch 8..4", *GPT, *ON), "--vary batch 8..4: its range is empty"),
        (("--law", "--vary", "batch 1", *GPT, *ON), "--vary batch 1 names no size and its range"),
        (("--law", "--vary", "--batch-size 1..8", *GPT, *ON), "--vary --batch-size 1..8 names no size and its range"),
        (("--law", "--vary", "batch", "--vary", "batch 1..9", *GPT, *ON), "A law is of one size, or of two"),
        (("--law", "--vary", "--size 1..8", *ON, "vllm", "serve", "opt"), "--law is of trainings"),
        (("-m", *GPT), "--module works only with a script"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(main.app, ["predict", *arguments])
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr


@needs_null_gpu
def test_it_says_what_was_assumed_of_this_program() -> None:
    said = " ".join(predict(*GPT, "--on", "720MiB").stdout.split())
    assert said.startswith(CAVEAT) and "720.00 MiB is taken as an A100 with that memory." in said
    assert "A100" not in predict(*GPT, "--on", "RTX-4090").stdout
