"""VLLM as PyPI has it starts on the null GPU, in processes of its own; where it is not installed, this is skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import needs_null_gpu

pytestmark = [
    needs_null_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM brings a torch of its own: run this beside it"),
]
# 2 layers, 4 heads of 64 for keys and values in 16 bits: 2 x 2 x 4 x 64 x 2 bytes for each token.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 1024,
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 2, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
TOKEN_BYTES = 2 * 2 * 4 * 64 * 2
MODULE = "vllm.entrypoints.openai.api_server"


def answer(folder: Path, *options: str, command: str = "run", on: str = "rtx-4090") -> tuple[int, dict[str, Any], str]:
    """Start a server of the small model; exit status, engine.json, and what was printed."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    own = ["-m", MODULE, "--model", str(folder), "--enforce-eager", *options]
    ended = subprocess.run(
        [sys.executable, "-m", "tracer", command, "--on", on, "--save-dir", str(folder / "results"), *own],
        capture_output=True,
        text=True,
        check=False,
    )
    file = folder / "results" / "engine.json"
    return ended.returncode, json.loads(file.read_text()) if file.is_file() else {}, ended.stdout + ended.stderr


def test_the_kv_cache_is_what_is_left_of_the_utilization(tmp_path: Path) -> None:
    status, found, printed = answer(tmp_path, "--gpu-memory-utilization", "0.5")
    assert status == 0, printed
    (worker,) = found["workers"]
    assert worker["limit_bytes"] == worker["total_bytes"] // 2
    # What is allocated with the cache: tables of its blocks.
    assert 0 <= worker["cache_bytes"] - found["kv_cache_tokens"] * TOKEN_BYTES < 2 << 20
    assert found["concurrency"] == pytest.approx(found["kv_cache_tokens"] / 8192, abs=0.01)
    assert f"{found['kv_cache_tokens']:,} tokens" in printed
    assert worker["unexplained_bytes"] == 0 and sum(worker["stage_bytes"].values()) == worker["allocated_bytes"]
    assert f"{found['kv_cache_tokens']:,} tokens" in (tmp_path / "results" / "memory_timeline.html").read_text()


def test_a_request_that_is_too_long_is_told_the_longest_that_fits(tmp_path: Path) -> None:
    """8,192 tokens of 2,048 bytes are 16 MiB."""
    status, found, printed = answer(tmp_path, "--kv-cache-memory-bytes", str(8 << 20), command="predict")
    assert status == 3, printed
    assert found["limit"] == "One request of 8,192 tokens needs 16.00 MiB of KV cache, and 8.00 MiB are there."
    assert found["changes"][0]["option"] == f"--max-model-len {found['largest_context']}"
    assert 4000 < found["largest_context"] <= 4096


def test_options_are_compared_in_a_table(tmp_path: Path) -> None:
    """Twice the share of the card is more than twice the cache: weights and activations are the same."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    own = ["-m", MODULE, "--model", str(tmp_path), "--enforce-eager"]
    tried = ["--try", "--gpu-memory-utilization 0.4,0.8", "--save-dir", str(tmp_path / "results")]
    ended = subprocess.run(
        [sys.executable, "-m", "tracer", "fit", "--on", "rtx-4090", *tried, *own], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    few, many = (json.loads((tmp_path / "results" / name / "engine.json").read_text()) for name in "12")
    assert many["kv_cache_tokens"] > 2 * few["kv_cache_tokens"]
    for found in (few, many):
        assert f"{found['kv_cache_tokens']:,}" in ended.stdout
    assert ended.stdout.rstrip().endswith("--gpu-memory-utilization 0.8")
