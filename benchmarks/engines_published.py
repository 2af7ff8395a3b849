"""KV cache of inference engines as published start-up logs say it, beside the same command on the null GPU.

    python -m benchmarks.engines_published --python ENVIRONMENT/bin/python [--only NAME] [--keep FOLDER]

ENVIRONMENT has vLLM and this package. Each row runs its command on its card, from a config.json that is written here:
no weights and no tokenizer are read. A published log is of the vLLM of its day; the version that runs is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

GIB = 1 << 30
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 128256,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "num_key_value_heads": 8, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
LLAMA_8B: Mapping[str, Any] = {
    **_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
}  # fmt: skip
LLAMA_70B_W8A8: Mapping[str, Any] = {
    **_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
                                  "dynamic": True},
        }},
    },
}  # fmt: skip
QWEN_14B: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "vocab_size": 152064,
    "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False, "sliding_window": 131072,
    "bos_token_id": 151643, "eos_token_id": 151643,
}  # fmt: skip
GPT_OSS_20B: Mapping[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 24, "head_dim": 64,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "initial_context_length": 4096, "rms_norm_eps": 1e-05,
    "rope_theta": 150000, "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "num_local_experts": 32, "num_experts_per_tok": 4,
    "experts_per_token": 4, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 200002,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A start-up log that somebody has published, with its command."""

    name: str
    source: str  # Where it is
    version: str  # vLLM's, as stated
    card: str  # For `--on`
    config: Mapping[str, Any]
    options: tuple[str, ...]  # Of `vllm serve`
    weights_gib: float | None = None
    cache_gib: float | None = None
    tokens: int | None = None
    note: str = ""  # What is known of a difference
    variables: Mapping[str, str] = field(default_factory=dict)


ROWS = (
    Published(
        "llama-8b", "a log of a user of vLLM; its address was not kept", "0.11", "h100",
        LLAMA_8B, ("--max-model-len", "8192", "--gpu-memory-utilization", "0.9", "--max-num-seqs", "256"),
        weights_gib=14.99, tokens=447_776,
    ),
    Published(
        "qwen-14b", "https://github.com/vllm-project/vllm/issues/13061", "0.7", "2xrtx-4090", QWEN_14B,
        ("--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.98", "--max-model-len", "65536"),
        weights_gib=13.9476, cache_gib=8.69, tokens=81_536,
        note="The log is of the engine before V1; it failed on 131,072 tokens, and 65,536 start.",
    ),
    Published(
        "llama-70b-w8a8", "https://github.com/vllm-project/vllm/pull/12569", "0.7", "h100", LLAMA_70B_W8A8,
        ("--max-model-len", "2048", "--gpu-memory-utilization", "0.98"), weights_gib=67.7229, tokens=1381 * 16,
        note="The card is not stated; 67.7 GiB of weights and 6.8 of cache need 80 GB.",
    ),
    Published(
        "gpt-oss-20b", "https://myoceane.fr/index.php/ai-vllm-a100-gemma-4/", "0.19.0", "a100", GPT_OSS_20B,
        ("--max-model-len", "131072", "--gpu-memory-utilization", "0.65"), weights_gib=13.72, cache_gib=36.56,
    ),
)  # fmt: skip


def measured(row: Published, python: str, folder: Path) -> dict[str, Any]:
    """Run a row's command on the null GPU, and return its engine.json."""
    model, results = folder / row.name / "model", folder / row.name / "results"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(dict(row.config)), "utf-8")
    command = [python, "-m", "tracer", "run", "--on", row.card, "--save-dir", str(results), "vllm", "serve", str(model)]
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", **row.variables}
    ended = subprocess.run(
        [*command, *row.options], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if not (results / "engine.json").is_file():
        raise SystemExit(f"{row.name}: {ended.stderr[-2000:]}")
    document: dict[str, Any] = json.loads((results / "engine.json").read_text("utf-8"))
    return document


def main() -> None:
    """Print a row for each log, and how far the KV cache is off in the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python of an environment with vLLM and this package")
    parser.add_argument("--only", choices=[row.name for row in ROWS])
    parser.add_argument("--keep", type=Path, help="folder that keeps the results")
    options = parser.parse_args()
    off: list[float] = []
    print("| log | card | vLLM | weights GiB, ours | KV cache GiB, ours | tokens, ours | off |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() if options.keep is None else nullcontext(options.keep) as folder:
        for row in ROWS:
            if options.only not in (None, row.name):
                continue
            document = measured(row, options.python, Path(folder))
            worker = min(document["workers"], key=lambda one: one["cache_bytes"])
            ours = worker["weights_bytes"] / GIB, worker["cache_bytes"] / GIB, document["kv_cache_tokens"]
            if not document["fits"]:
                print(f"| {row.name} | {row.card} | does not start: {document['limit']} |")
                continue
            theirs = (row.cache_gib, ours[1]) if row.tokens is None else (row.tokens, ours[2])
            assert theirs[0] is not None and theirs[1] is not None
            off.append(theirs[1] / theirs[0] - 1)
            pairs = zip((row.weights_gib, row.cache_gib, row.tokens), ours, ("{:.2f}", "{:.2f}", "{:,}"), strict=True)
            cells = [f"{form.format(p) if p is not None else ''}, {form.format(o)}" for p, o, form in pairs]
            print(
                f"| {row.name} | {row.card} | {row.version}, {worker['engine']} | {' | '.join(cells)} "
                f"| {off[-1]:+.1%} |"
            )
    if off:
        print(f"\nKV cache: median {median(map(abs, off)):.1%} off, most {max(map(abs, off)):.1%}, of {len(off)}.")


if __name__ == "__main__":
    main()
