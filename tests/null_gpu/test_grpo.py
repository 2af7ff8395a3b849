"""GRPO of trl with vLLM in its process, by phase; where they are not installed, this is skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu

pytestmark = [
    needs_null_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("trl") and find_spec("vllm")),
        reason="trl and vLLM bring a torch of their own: run this beside them",
    ),
]
MODEL = """
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

letters = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
Qwen2Tokenizer(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]).save_pretrained("model")
config = Qwen2Config(
    vocab_size=len(letters), hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, eos_token_id=256, pad_token_id=256, dtype="bfloat16",
)
Qwen2ForCausalLM(config).bfloat16().save_pretrained("model")
"""
GRPO = """
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

def reward(completions, **_):
    left_bytes, total_bytes = torch.cuda.mem_get_info()
    print("\\nused for rewards:", total_bytes - left_bytes, flush=True)
    return [float(len(text)) for text in completions]

if __name__ == "__main__":
    config = GRPOConfig(
        output_dir="checkpoints", per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
        max_steps=2, use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3,
        vllm_enable_sleep_mode=True, vllm_max_model_length=256, bf16=True, report_to="none", save_strategy="no",
    )
    prompts = Dataset.from_dict({"prompt": [f"{number} + {number} =" for number in range(32)]})
    GRPOTrainer(model="model", reward_funcs=reward, args=config, train_dataset=prompts).train()
"""


@pytest.mark.parametrize(("card", "folders"), [("h100", [""]), ("2xh100", ["rank0", "rank1"])])
def test_each_phase_of_a_step_of_grpo_has_rows_that_sum(tmp_path: Path, card: str, folders: list[str]) -> None:
    subprocess.run([sys.executable, "-c", MODEL], cwd=tmp_path, check=True)
    (tmp_path / "grpo.py").write_text(GRPO, "utf-8")
    command = [sys.executable, str(ROOT / "main.py"), "run", "--on", card, "--save-dir", "out", "grpo.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank, folder in enumerate(tmp_path / "out" / name for name in folders):
        (worker,) = read(folder / "engine.json")["workers"]
        assert worker["rank"] == rank
        output = (folder / "output.txt").read_text("utf-8") if rank else ended.stdout
        used = [int(line.split(": ")[1]) for line in output.splitlines() if line.startswith("used for rewards: ")]
        check_phases(read(folder / "phases.json"), cache_bytes=worker["cache_bytes"], used_bytes=max(used))


def check_phases(found: dict[str, Any], *, cache_bytes: int, used_bytes: int) -> None:
    (process,) = found["processes"]
    assert not found["gpus"]  # no other process held the card
    phases = {phase["name"].removeprefix("trl: GRPOTrainer."): phase for phase in process["phases"]}
    for phase in phases.values():
        parts = phase["allocated_bytes"] + phase["cached_bytes"] + phase["outside_bytes"] - phase["unmapped_bytes"]
        assert parts == phase["held_bytes"]
    wakes = (phase for name, phase in phases.items() if name.startswith("vLLM: wake_up"))
    mapped_bytes = max(phase["end_bytes"] - phase["begin_bytes"] for phase in wakes)
    assert 0 <= cache_bytes - mapped_bytes < 2 << 20  # What is allocated with the cache: tables of its blocks
    (sleep,) = (phase for name, phase in phases.items() if name.startswith("vLLM: sleep"))
    assert sleep["begin_bytes"] - sleep["end_bytes"] >= mapped_bytes
    # The KV cache is on the card while vLLM generates, and off it in the other phases.
    generate = phases["vLLM.generate"]
    assert generate["unmapped_bytes"] == 0 and generate["held_bytes"] > mapped_bytes
    for name in ("sync_weights", "reward", "compute_loss"):
        assert phases[name]["unmapped_bytes"] >= mapped_bytes > phases[name]["held_bytes"]
    assert phases["reward"]["held_bytes"] == used_bytes


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document
