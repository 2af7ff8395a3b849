"""`predict --table`: a model's memory by the type of its weights and by use, worked out by hand."""

from __future__ import annotations

import json

import pytest
from torch import nn
from typer.testing import CliRunner, Result

import main
from tracer.workloads.module_tensors import quantized_bytes, weights_bytes

_MODEL = ("--model", "torch.nn:Linear", "--model-arg", "in_features=1024", "--model-arg", "out_features=2048")
_ASKED = ("predict", "--engine", "rehearsal", *_MODEL, "--input", "1024", "--batch-size", "1")


def called(*words: str) -> Result:
    return CliRunner().invoke(main.app, [*_ASKED, *words])


@pytest.fixture(scope="module")
def answer() -> Result:
    return called("--gpu-memory", "740MiB", "--table", "--json")


def test_weights_and_uses_are_in_the_table(answer: Result) -> None:
    assert answer.exit_code == 3, answer.stderr  # as asked, in 32 bits with AdamW, it does not fit
    table = {row["weights"]: row for row in json.loads(answer.stdout)["table"]}
    assert list(table) == ["float32", "bfloat16", "8 bits", "4 bits"]
    num_weights, num_biases = 1024 * 2048, 2048
    assert table["float32"]["weights_bytes"] == 4 * (num_weights + num_biases)
    assert table["bfloat16"]["weights_bytes"] == 2 * (num_weights + num_biases)
    # A factor of 32 bits for each row, or for 64 weights; the bias stays in 16 bits.
    assert table["8 bits"]["weights_bytes"] == num_weights + 4 * 2048 + 2 * num_biases
    assert table["4 bits"]["weights_bytes"] == num_weights // 2 + 4 * num_weights // 64 + 2 * num_biases
    used = {name: {cell["use"]: cell for cell in row["cells"]} for name, row in table.items()}
    assert set(used["float32"]) == {"inference", "training, sgd", "training, adamw"} and set(used["4 bits"]) == {
        "inference"
    }
    # AdamW has two more tensors for each parameter than SGD, and temporary ones.
    more_bytes = (
        used["float32"]["training, adamw"]["reserved_bytes"] - used["float32"]["training, sgd"]["reserved_bytes"]
    )
    assert more_bytes >= 2 * table["float32"]["weights_bytes"] - (2 << 20)
    assert [used["float32"][use]["fits"] for use in used["float32"]] == [True, False, False]
    assert used["bfloat16"]["inference"]["reserved_bytes"] > used["8 bits"]["inference"]["reserved_bytes"]


def test_the_screen_shows_it_and_says_what_is_computed() -> None:
    shown = called("--gpu-memory", "740MiB", "--table", "--top", "0").stdout
    assert "Reserved, by the type of weights" in shown and "(does not fit)" in shown
    assert "8 and 4 bits are computed" in shown
    lacks = called("--table")
    assert lacks.exit_code == 2 and "--table works only with --on or --gpu-memory" in lacks.stderr


class Tied(nn.Module):
    """An output layer that shares the embedding's weight, and one layer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(10, 64), nn.Linear(64, 10, bias=False)
        self.output.weight = self.embedding.weight
        self.inner = nn.Linear(64, 64, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.output


def test_the_output_layer_is_not_quantized_and_a_shared_weight_counts_once() -> None:
    assert weights_bytes(Tied()) == 4 * (640 + 4096)
    assert quantized_bytes(Tied(), 8) == 4 * 640 + 4096 + 4 * 64
    assert quantized_bytes(Tied(), 4) == 4 * 640 + 2048 + 4 * 64
