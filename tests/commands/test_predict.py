"""`predict`: what it answers, the files that it leaves, its exit status, and one sentence for each mistake."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import main
from tracer.exporters.json_documents.peak import read_peak_json
from tracer.exporters.page.html import data_of_html

GPT = ("--model", "models.gpt:build")


@cache
def predict(*arguments: str) -> Result:
    """By rehearsal, which needs no other process; what several tests ask is asked once."""
    return CliRunner().invoke(main.app, ["predict", "--engine", "rehearsal", *arguments])


def as_json(*arguments: str) -> dict[str, Any]:
    result = predict(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_it_says_what_a_step_needs_and_what_fills_it() -> None:
    said = as_json(*GPT)
    assert said["fits"] is None and said["device"] == "cuda:0"
    assert said["peak_requested_bytes"] <= said["peak_allocated_bytes"] <= said["peak_reserved_bytes"]
    assert said["reserved_low_bytes"] <= said["peak_reserved_bytes"] <= said["reserved_high_bytes"]
    assert (
        sum(row["bytes"] for row in said["rows"]) == said["peak_allocated_bytes"] == sum(said["by_category"].values())
    )
    assert {"PARAMETER", "OPTIMIZER_STATE", "ACTIVATION"} <= said["by_category"].keys()


def test_it_fits_or_it_does_not() -> None:
    wide = predict(*GPT, "--gpu-memory", "RTX-4090")
    assert wide.exit_code == 0 and "Fits in RTX-4090 (23.64 GiB)" in wide.stdout
    tight = predict(*GPT, "--gpu-memory", "720MiB")
    assert tight.exit_code == 3 and "Does not fit in 720.00 MiB" in tight.stdout
    where = as_json(*GPT, "--gpu-memory", "720MiB")["out_of_memory"]
    assert where["step"] >= 0 and where["op"].startswith("aten::") and where["file"].endswith("gpt.py")


def test_the_files_are_those_of_a_run(tmp_path: Path) -> None:
    said = as_json(*GPT, "--save-dir", str(tmp_path))
    peak = read_peak_json(tmp_path / "peak.json")
    assert peak.bytes == said["peak_allocated_bytes"] and peak.device == "cuda:0"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"max_mem.txt", "memory_report.sqlite", "memory_snapshot.pkl", "memory_timeline.html"} <= written
    assert "cuda_timing.txt" not in written
    (page,) = data_of_html((tmp_path / "memory_timeline.html").read_text(encoding="utf-8"))["pages"]
    assert (page["title"], page["caveat"]) == (
        "Predicted memory of a training step",
        "Rehearsal: memory is predicted, nothing has run.",
    )
    # The answer comes first, and nothing that did not run has a time.
    assert page["headline"][0].startswith(("Fits in ", "Does not fit in ", "Needs "))
    assert page["axis"] == "entry" and not any(section["title"] == "Time" for section in page["sections"])


def test_shapes_that_vary_are_between_the_smallest_and_the_largest(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))\n",
        encoding="utf-8",
    )
    said = as_json("--model", f"{file}:build", "--input", "16..256:int64:0-64")
    small, large = said["by_shape"]
    assert (small["inputs"], large["inputs"]) == (["16:int64:0-64"], ["256:int64:0-64"])
    assert small["allocated_bytes"] < said["peak_allocated_bytes"]
    # Of the batch before, the loop still holds the loss when the next begins.
    assert large["allocated_bytes"] - 1024 <= said["peak_allocated_bytes"] <= large["allocated_bytes"] + 1024
    assert said["peak_reserved_bytes"] >= large["reserved_bytes"]


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    said = as_json(*GPT, "--gpu-memory", "736MiB", "--largest-batch")
    batch = said["largest_batch"]
    for size, fits in ((batch, True), (batch + 1, False)):
        assert as_json(*GPT, "--batch-size", str(size), "--gpu-memory", "736MiB")["fits"] is fits


def test_a_batch_that_does_not_fit_is_offered_in_micro_batches(tmp_path: Path) -> None:
    """16 MiB of weights, as much of gradients; a sample needs 4 MiB in each of two layers, and gradients of these."""
    file = tmp_path / "net.py"
    file.write_text(
        "from torch.nn import Linear, ReLU, Sequential\n"
        "def build():\n    return Sequential(Linear(1024, 2048), ReLU(), Linear(2048, 1024))\n",
        encoding="utf-8",
    )
    model = ("--model", f"{file}:build", "--input", "512x1024", "--optimizer", "sgd")
    said = as_json(*model, "--batch-size", "24", "--gpu-memory", "900MiB", "--largest-batch")
    largest, (size, number) = said["largest_batch"], said["accumulated"].values()
    assert said["fits"] is False and 0 < size <= largest < 24 and size * number == 24
    again = (*model, "--gpu-memory", "900MiB", "--batch-size", str(size), "--accumulate", str(number))
    assert as_json(*again)["fits"] is True
    words = predict(*model, "--batch-size", "24", "--gpu-memory", "900MiB", "--largest-batch").stdout
    assert f"--batch-size {size} --accumulate {number}" in " ".join(words.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Neither a model nor a script is named"),
        (("--batch-size", "4", "--gpu-memory", "24GiB"), "Neither a model nor a script is named"),
        (("--tokens", "8"), "--tokens works only with --hf-config"),
        (("--lora", "8"), "--lora works only with --model"),
        (("--gpu-memory", "a lot"), "There is no card a lot in the table"),
        (("--gpu-memory", "MI300X"), "MI300X is AMD's, and what answers here is torch's code for NVIDIA's cards"),
        (("--on", "Radeon RX 7900"), "Radeon RX 7900 is AMD's"),
        (("--on", "24"), "24 has no unit"),
        (("--on", "h100", "--gpu-memory", "24GiB", *GPT), "mean the same"),
        (("--largest-batch", *GPT), "--largest-batch works only with --on or --gpu-memory"),
        (("--largest-tokens", "--on", "24GiB", *GPT), "--largest-tokens works only with --hf-config"),
        (("--largest-image", "--on", "24GiB", *GPT), "--largest-image needs an image to vary"),
        (("train.py", "--on", "h100"), "A script cannot be rehearsed"),
        (("--steps", "3", *GPT), "--steps works only with a script"),
        (("--device", "cpu", "--gpu-memory", "1GiB"), "work only for a GPU"),
        (("--settings", "expandable:True"), "expandable"),
        (("--gpu-memory", "1GiB", "--n-modes", "x"), "is not a size"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = predict(*arguments)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr


@pytest.mark.usefixtures("alone")
def test_a_prediction_and_a_run_stand_side_by_side(tmp_path: Path) -> None:
    """On the CPU they agree on all but kernels' own memory: no row of a tensor differs by a byte."""
    predicted, measured = tmp_path / "predicted", tmp_path / "measured"
    assert predict(*GPT, "--device", "cpu", "--save-dir", str(predicted)).exit_code == 0
    run = [*GPT, "--device", "cpu", "--no-cuda-timing", "--n-repeats", "1", "--save-dir", str(measured)]
    assert CliRunner().invoke(main.app, run).exit_code == 0
    peaks = [read_peak_json(folder / "peak.json") for folder in (predicted, measured)]
    kinds = ("PARAMETER", "BUFFER", "GRADIENT", "OPTIMIZER_STATE", "INPUT", "ACTIVATION")
    totals = [[sum(row.bytes for row in peak.rows if row.category == kind) for kind in kinds] for peak in peaks]
    assert totals[0] == totals[1]
    shown = CliRunner().invoke(main.app, ["diff", str(predicted), str(measured)])
    assert shown.exit_code == 0 and "models/gpt.py" in shown.stdout


def test_on_and_gpu_memory_are_two_forms_of_one_option() -> None:
    on, memory = (predict(*GPT, option, "720MiB") for option in ("--on", "--gpu-memory"))
    assert (on.exit_code, on.stdout) == (memory.exit_code, memory.stdout)


def test_it_says_who_answered_and_what_was_assumed_of_this_program() -> None:
    said = " ".join(predict(*GPT, "--gpu-memory", "24GiB").stdout.split())
    assert "Rehearsed on tensors without memory, by rules for what a GPU does differently" in said
    assert "24.00 GiB is taken as an A100 with that memory." in said
    assert "rules from torch's sources" not in said
    assert "A100" not in predict(*GPT, "--gpu-memory", "RTX-4090").stdout
    assert "as the CPU runs it" in predict(*GPT, "--device", "cpu").stdout


def test_in_a_process_with_torch_the_null_gpu_is_not_started_unasked() -> None:
    result = CliRunner().invoke(main.app, ["predict", *GPT, "--gpu-memory", "24GiB"])
    assert result.exit_code == 0 and "Rehearsed" in result.stdout
    assert "torch is already loaded in this process" in result.stderr
