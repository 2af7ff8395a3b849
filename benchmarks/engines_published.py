"""KV cache of vLLM as published start-up logs say it, beside the same command on the null GPU.

    python -m benchmarks.engines_published --python ENVIRONMENT/bin/python [--only NAME,NAME] [--keep FOLDER]
    python -m benchmarks.engines_published --python ENVIRONMENT/bin/python --cards h100,a100,l40s,rtx-4090,t4

ENVIRONMENT has vLLM and this package. Each row runs its command on its card, from a config.json that is written here:
no weights and no tokenizer are read. With --keep a row that has its engine.json in the folder is not run again.
With --cards a small model starts on each card instead, compiled and with CUDA graphs. Either way the bytes that the
stages of the start-up have allocated stand beside torch's own count of the worker with the least KV cache.

The rows of `llm-d-planner` are its whole start-up logs of vLLM 0.19.0 on H100s, in which the memory of CUDA graphs is
not estimated before the KV cache is sized, as it is from 0.21 on: for them the estimate is left out here too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

GIB: Final = 1 << 30


def _config(
    architecture: str,
    model_type: str,
    *sizes: int,
    **more: Any,
) -> dict[str, Any]:
    """Return a config.json of a decoder.

    Args:
        sizes: Of hidden states and of the MLP, numbers of layers, heads and heads of the KV cache, and the vocabulary.
    """
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size",
    )  # fmt: skip
    common = {
        "architectures": [f"{architecture}ForCausalLM"], "model_type": model_type, "hidden_act": "silu",
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return common | dict(zip(names, sizes, strict=True)) | more


def _weights_of(num_bits: int, kind: str, strategy: str) -> dict[str, Any]:
    """Return the quantization of a checkpoint of llm-compressor; activations are quantized by token."""
    by_token = {"num_bits": num_bits, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    weights = {"num_bits": num_bits, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": by_token, "output_activations": None}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": f"{kind}-quantized", "ignore": ["lm_head"],
            "quantization_status": "compressed", "config_groups": {"group_0": group},
        }
    }  # fmt: skip


_FP8 = _weights_of(8, "float", "channel")
_W8A8 = _weights_of(8, "int", "channel")
_GPT_OSS = {
    "head_dim": 64, "initial_context_length": 4096, "rope_theta": 150000, "attention_bias": True, "swiglu_limit": 7.0,
    "sliding_window": 128, "num_experts_per_tok": 4, "experts_per_token": 4, "eos_token_id": 200002,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
_GEMMA2 = {
    "tie_word_embeddings": True, "max_position_embeddings": 8192, "rope_theta": 10000.0, "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
}  # fmt: skip
_GRANITE = {
    "tie_word_embeddings": True, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 16.0,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
# Sizes are those of the public config.json of each model.
LLAMA_8B = _config("Llama", "llama", 4096, 14336, 32, 32, 8, 128256)
_LLAMA_70B = _config("Llama", "llama", 8192, 28672, 80, 64, 8, 128256)
_QWEN2_7B = _config("Qwen2", "qwen2", 3584, 18944, 28, 28, 4, 152064)
_QWEN3_8B = _config("Qwen3", "qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128, max_position_embeddings=40960)
_QWEN2_SMALL = _config(
    "Qwen2", "qwen2", 896, 4864, 24, 14, 2, 151936, max_position_embeddings=32768, tie_word_embeddings=True
)  # fmt: skip
_QWEN1_5_MOE = _config(
    "Qwen2Moe", "qwen2_moe", 2048, 5632, 24, 16, 16, 151936, max_position_embeddings=8192, moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4, norm_topk_prob=False,
    decoder_sparse_step=1, use_sliding_window=False,
)  # fmt: skip
_QWEN3_MOE = _config(
    "Qwen3Moe", "qwen3_moe", 2048, 6144, 48, 32, 4, 151936, head_dim=128, max_position_embeddings=40960,
    moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[],
)  # fmt: skip
_FP8_BLOCKS = {
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                            "modules_to_not_convert": ["lm_head"]}
}  # fmt: skip
_PHI_2 = _config(
    "Phi", "phi", 2560, 10240, 32, 32, 32, 51200, torch_dtype="float16", max_position_embeddings=2048,
    partial_rotary_factor=0.4, layer_norm_eps=1e-05, hidden_act="gelu_new", qk_layernorm=False,
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A start-up log that somebody has published, with its command."""

    name: str
    source: str  # Where it is
    version: str  # vLLM's, as stated
    card: str  # For `--on`
    config: Mapping[str, Any]
    options: str  # Of `vllm serve`
    weights_gib: float
    activation_gib: float | None  # Torch's peak beside the weights
    cache_gib: float
    tokens: int
    estimates_graphs: bool = False  # Whether that vLLM takes CUDA graphs off the KV cache


_PLANNER: Final = "github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0/logs"


def _planner(
    name: str, config: Mapping[str, Any], measured: tuple[float, float, float, int], options: str = "", gpus: int = 1
) -> Published:
    """Return a row of llm-d-planner.

    Args:
        measured: GiB of weights, of activations and of the KV cache, and its tokens.
    """
    parallel = f" --tensor-parallel-size {gpus}" if gpus > 1 else ""
    length = min(8192, config["max_position_embeddings"])
    command = f"--max-model-len {length} --gpu-memory-utilization 0.95 --no-enable-prefix-caching{parallel} {options}"
    card = "h100:79.19GiB" if gpus == 1 else f"{gpus}xh100:79.19GiB"
    return Published(name, _PLANNER, "0.19.0", card, config, command, *measured)


_EXPERIENCE: Final = "github.com/lyell0710/vllmExperience"


def _experience(
    name: str, config: Mapping[str, Any], measured: tuple[float, float, int], options: str, gpus: int = 1
) -> Published:
    """Return a row of vllmExperience.

    Args:
        measured: GiB of weights and of the KV cache, and its tokens.
    """
    parallel = f" --gpu-memory-utilization 0.88 --tensor-parallel-size {gpus}" if gpus > 1 else ""
    card, (weights_gib, cache_gib, tokens) = "rtx-4090" if gpus == 1 else f"{gpus}xrtx-4090", measured
    return Published(
        name, _EXPERIENCE, "0.25.1", card, config, options + parallel, weights_gib, None, cache_gib, tokens,
        estimates_graphs=True,
    )  # fmt: skip


ROWS: Final = (
    _planner("llama-3.1-8b", LLAMA_8B, (14.99, 1.89, 58.11, 476_016)),
    _planner("llama-3.1-8b kv-fp8", LLAMA_8B, (14.99, 1.89, 58.11, 952_032), "--kv-cache-dtype fp8"),
    _planner("llama-3.1-8b fp8", LLAMA_8B, (8.49, 1.89, 64.61, 529_248), "--quantization fp8"),
    _planner("llama-3.1-8b float32", LLAMA_8B, (29.98, 2.21, 42.80, 175_296), "--dtype float32"),
    _planner("llama-3.1-8b w8a8", LLAMA_8B | _W8A8, (8.49, 1.89, 64.60, 529_200), "--dtype float16"),
    _planner("llama-3.1-8b tp2", LLAMA_8B, (7.51, 1.89, 63.76, 1_044_688), gpus=2),
    _planner("qwen2.5-7b", _QWEN2_7B, (14.25, 2.21, 58.53, 1_096_000)),
    _planner("qwen2.5-7b fp8", _QWEN2_7B | _FP8, (8.14, 2.21, 64.64, 1_210_304)),
    _planner("qwen2.5-7b tp2", _QWEN2_7B, (7.12, 2.21, 63.84, 2_390_592), gpus=2),
    _planner("qwen3-8b", _QWEN3_8B, (15.27, 2.21, 57.50, 418_688)),
    _planner("qwen3-30b-a3b", _QWEN3_MOE, (56.88, 2.68, 15.41, 168_288)),
    _planner("qwen1.5-moe-a2.7b", _QWEN1_5_MOE, (26.67, 2.47, 45.83, 250_304)),
    _planner(
        "mixtral-8x7b tp2",
        _config("Mixtral", "mixtral", 4096, 14336, 32, 32, 8, 32000, max_position_embeddings=32768,
                num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
        (43.51, 1.21, 28.44, 465_936), gpus=2,
    ),
    _planner(
        "codellama-7b",
        _config("Llama", "llama", 4096, 11008, 32, 32, 32, 32016, max_position_embeddings=16384),
        (12.56, 0.77, 61.66, 126_256),
    ),
    _planner(
        "granite-3.1-2b",
        _config("Granite", "granite", 2048, 8192, 40, 32, 8, 49155, attention_multiplier=0.015625, **_GRANITE),
        (4.74, 0.75, 69.28, 908_048),
    ),
    _planner(
        "granite-3.1-8b",
        _config("Granite", "granite", 4096, 12800, 40, 32, 8, 49155, attention_multiplier=0.0078125, **_GRANITE),
        (15.25, 0.85, 58.66, 384_432),
    ),
    _planner("phi-2", _PHI_2, (5.19, 0.79, 69.00, 226_112)),
    _planner(
        "phi-4",
        _config("Phi3", "phi3", 5120, 17920, 40, 40, 10, 100352, max_position_embeddings=16384, pad_token_id=0,
                original_max_position_embeddings=16384),
        (27.39, 1.52, 46.08, 241_568),
    ),
    _planner(
        "gemma-7b",
        _config("Gemma", "gemma", 3072, 24576, 28, 16, 16, 256000, max_position_embeddings=8192, head_dim=256,
                tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", pad_token_id=0),
        (15.91, 3.63, 55.44, 129_760),
    ),
    _planner(
        "gemma-2-2b",
        _config("Gemma2", "gemma2", 2304, 9216, 26, 8, 4, 256000, head_dim=256, query_pre_attn_scalar=256, **_GEMMA2),
        (4.90, 3.62, 66.47, 670_160),
    ),
    _planner(
        "gemma-2-9b",
        _config("Gemma2", "gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256, query_pre_attn_scalar=256, **_GEMMA2),
        (17.22, 3.65, 54.12, 168_880),
    ),
    _planner(
        "gpt-oss-20b tp2",
        _config("GptOss", "gpt_oss", 2880, 2880, 24, 64, 8, 201088, num_local_experts=32,
                layer_types=["sliding_attention", "full_attention"] * 12, **_GPT_OSS),
        (7.01, 2.87, 63.28, 2_764_768), gpus=2,
    ),
    _planner("llama-3.3-70b fp8 tp2", _LLAMA_70B | _FP8, (33.88, 1.96, 37.28, 244_304), gpus=2),
    Published(
        "llama-3.1-8b a100", "github.com/ilseokoh/vllm-gce, README.md", "0.15.1", "a100:39.49GiB", LLAMA_8B,
        "--enforce-eager --max-num-batched-tokens 8192 --max-num-seqs 256", 14.99, None, 19.28, 157_936,
    ),
    Published(
        "qwen3-8b a100", "github.com/dariustanrd/tokenkaki", "0.9.2", "a100:39.49GiB", _QWEN3_8B,
        "--max-num-batched-tokens 2048 --max-num-seqs 256", 15.2683, None, 18.69, 136_080,
    ),
    Published(
        "qwen2-7b a100", "github.com/dennislee22/vLLM-benchmarking, log/vllm-7B-1gpuA10080GB-0.5GRAM.log", "0.10.1.1",
        "a100-80gb", _QWEN2_7B | {"max_position_embeddings": 32768},
        "--max-model-len 16384 --gpu-memory-utilization 0.5 --max-num-batched-tokens 2048 --max-num-seqs 256",
        14.2488, None, 24.83, 464_848,
    ),
    Published(
        "qwen3-0.6b l40s", "github.com/opendatahub-io/llm-d-playbooks, 08-benchmarking", "0.11.2", "l40s",
        _config("Qwen3", "qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128, max_position_embeddings=40960,
                tie_word_embeddings=True),
        "--max-model-len 16000 --max-num-batched-tokens 2048 --max-num-seqs 256", 1.12, None, 37.42, 350_304,
    ),
    Published(
        "qwen3-8b a100 0.19", "github.com/dariustanrd/tokenkaki", "0.19.1", "a100-40gb", _QWEN3_8B, "",
        15.27, None, 19.36, 140_960,
    ),
    Published(
        "qwen2.5-72b tp4 l40s", "github.com/gnosia93/eks-agentic-ai", "0.19.0", "4xl40s",
        _config("Qwen2", "qwen2", 8192, 29568, 80, 64, 8, 152064, max_position_embeddings=32768),
        "--max-model-len 8192 --tensor-parallel-size 4", 33.98, None, 5.11, 67_024,
    ),
    Published(
        "granite-4.0-micro fp8 l40s", "github.com/IBM/CodeEngine, tutorials/inferencing", "0.11.0", "l40s",
        _config("GraniteMoeHybrid", "granitemoehybrid", 2560, 8192, 40, 40, 8, 100352, num_local_experts=0,
                num_experts_per_tok=0, shared_intermediate_size=8192, layer_types=["attention"] * 40,
                attention_multiplier=0.015625, position_embedding_type="rope", mamba_n_heads=80, mamba_d_head=64,
                mamba_expand=2, mamba_d_state=256, mamba_d_conv=4, mamba_n_groups=1, mamba_chunk_size=256,
                mamba_conv_bias=True, mamba_proj_bias=False, normalization_function="rmsnorm", **_GRANITE),
        "--quantization fp8 --no-enable-prefix-caching --max-num-batched-tokens 8192 --max-num-seqs 256",
        3.4244, None, 35.34, 463_136,
    ),
    Published(
        "exaone-4.0-32b fp8 l40s", "github.com/skn21-final-1team/modelling", "0.11.0", "l40s",
        _config("Exaone4", "exaone4", 5120, 27392, 64, 40, 8, 102400, head_dim=128, sliding_window=4096,
                sliding_window_pattern="LLLG", layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16,
                rope_theta=1000000, rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
                **_FP8_BLOCKS),
        "--max-model-len 4096 --enforce-eager --gpu-memory-utilization 0.95", 30.9891, None, 10.31, 42_224,
    ),
    _experience("qwen2-7b rtx-4090", _QWEN2_7B, (14.29, 7.0, 131_152), "--max-model-len 16384"),
    _experience(
        "qwen2.5-0.5b rtx-4090", _QWEN2_SMALL, (0.93, 15.22, 1_330_240),
        "--max-model-len 2048 --enforce-eager --gpu-memory-utilization 0.7",
    ),
    _experience("qwen2-7b tp2 rtx-4090", _QWEN2_7B, (7.16, 12.93, 484_160), "--max-model-len 8192", gpus=2),
    _experience(
        "qwen1.5-moe-a2.7b tp2 rtx-4090", _QWEN1_5_MOE, (13.39, 6.97, 76_160),
        "--max-model-len 8192 --enable-expert-parallel", gpus=2,
    ),
    _experience(
        "qwen3-30b-a3b fp8 tp2 rtx-4090", _QWEN3_MOE | _FP8_BLOCKS, (14.54, 4.09, 89_248),
        "--max-model-len 8192 --enable-expert-parallel", gpus=2,
    ),
    *(
        Published(
            f"qwen2.5-0.5b {dtype} gtx-1660", "github.com/fillipeml/qlora-serving-lab, README.md", "0.31.0",
            "rtx-2060:6GiB", _QWEN2_SMALL,
            f"--dtype {dtype} --max-model-len 2048 --max-num-seqs 16 --gpu-memory-utilization 0.78 --enforce-eager",
            weights_gib, None, cache_gib, tokens,
        )
        for dtype, weights_gib, cache_gib, tokens in (
            ("float32", 1.84, 2.55, 111_616), ("float16", 0.92, 3.56, 311_264)
        )
    ),
)  # fmt: skip


SMALL: Final = _config("Llama", "llama", 1024, 2816, 4, 16, 8, 32000)


def measured(row: Published, python: str, folder: Path) -> dict[str, Any]:
    """Run a row's command on the null GPU, and return its engine.json."""
    variables = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": str(int(row.estimates_graphs))}
    own = folder / row.name.replace(" ", "-")
    return started(row.card, row.config, row.options, own, python=python, variables=variables)


def started(
    card: str,
    config: Mapping[str, Any],
    options: str,
    own: Path,
    *,
    python: str,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Start `vllm serve` of a model on the null GPU, and return its engine.json.

    Args:
        own: Folder of the model and of the results; where it has results, nothing is run.
    """
    model, results = own / "model", own / "results"
    if not (results / "engine.json").is_file():
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(dict(config)), "utf-8")
        command = [python, "-m", "tracer", "run", "--on", card, "--save-dir", str(results)]
        ended = subprocess.run(
            [*command, "vllm", "serve", str(model), *options.split()],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if not (results / "engine.json").is_file():
            raise SystemExit(f"{own.name}: {ended.stderr[-2000:]}")
    document: dict[str, Any] = json.loads((results / "engine.json").read_text("utf-8"))
    return document


def _worst(document: Mapping[str, Any]) -> dict[str, Any]:
    worst: dict[str, Any] = min(document["workers"], key=lambda one: one["cache_bytes"])
    return worst


def _counted(worker: Mapping[str, Any]) -> str:
    """Return the sum of the stages, torch's count and their difference; empty for a result of an earlier version."""
    if "stage_bytes" not in worker:
        return ""
    return f"{sum(worker['stage_bytes'].values()):,}, {worker['allocated_bytes']:,}, {worker['unexplained_bytes']:,}"


def print_cards(cards: Sequence[str], python: str, folder: Path) -> None:
    """Print a row for each card on which a small model starts."""
    print("| vLLM | card | KV cache GiB | tokens | by stages, torch's count, unexplained |")
    print("| --- | --- | ---: | ---: | ---: |")
    for card in cards:
        document = started(card, SMALL, "--max-model-len 2048", folder / card.replace(":", "-"), python=python)
        worker = _worst(document)
        said = f"{worker['cache_bytes'] / GIB:.2f} | {document['kv_cache_tokens']:,}"
        cells = f"{said} | {_counted(worker)}" if document["fits"] else f"does not start: {document['limit']} | |"
        print(f"| {worker['engine']} | {card} | {cells} |", flush=True)


def _cell(theirs: float | None, ours: float) -> str:
    return f"{'' if theirs is None else f'{theirs:.2f}'}, {ours:.2f}"


def main() -> None:
    """Print a row for each log, or for each card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python of an environment with vLLM and this package")
    parser.add_argument("--only", help="names of rows, with commas")
    parser.add_argument("--cards", help="cards on which a small model starts, with commas; no log is looked at")
    parser.add_argument("--keep", type=Path, help="folder that keeps the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() if options.keep is None else nullcontext(options.keep) as folder:
        if options.cards:
            print_cards(options.cards.split(","), options.python, Path(folder))
        else:
            print_logs(options.only.split(",") if options.only else None, options.python, Path(folder))


def print_logs(names: Sequence[str] | None, python: str, folder: Path) -> None:
    """Print a row for each log, or those of some names, and how far the tokens are off in the median."""
    off: list[float] = []
    print(
        "| log | card | vLLM | weights GiB | activations GiB | KV cache GiB | tokens, ours | off | sum, count, rest |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in (row for row in ROWS if names is None or row.name in names):
        document = measured(row, python, folder)
        if not document["fits"]:
            print(f"| {row.name} | {row.card} | does not start: {document['limit']} |", flush=True)
            continue
        worker = _worst(document)
        off.append(document["kv_cache_tokens"] / row.tokens - 1)
        cells = (
            _cell(row.weights_gib, worker["weights_bytes"] / GIB),
            _cell(row.activation_gib, worker["activation_bytes"] / GIB),
            _cell(row.cache_gib, worker["cache_bytes"] / GIB),
            f"{row.tokens:,}, {document['kv_cache_tokens']:,}",
            f"{off[-1]:+.1%}",
            _counted(worker),
        )
        print(f"| {row.name} | {row.card} | {row.version}, {worker['engine']} | {' | '.join(cells)} |", flush=True)
    if off:
        sizes = [abs(one) for one in off]
        near = sum(one <= 0.06 for one in sizes)
        print(
            f"\nTokens: {median(sizes):.1%} off in the median, {max(sizes):.1%} at most; {near} of {len(off)} to 6 %."
        )


if __name__ == "__main__":
    main()
