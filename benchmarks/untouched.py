"""Weights made on the CPU, under `run --on`: unwritten until somebody reads them, and beside it all written.

    python -m benchmarks.untouched                 a GPT of 96 layers, both sides in turn
    python -m benchmarks.untouched --layers 48 --repeats 5
    python -m benchmarks.untouched --llama         Llama 3.1 8B as one rank of 8, from_config and FSDP2
    python -m benchmarks.untouched --llama --layers 80 --on 64xh100     70B: one side, the other needs 282 GB

Prints seconds of a processor (user and system, of the process and its children) and the most memory that it had, in the
median, and the median and the spread of the ratio. Exits with 1 if the two sides' peaks differ by a byte.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.start import ROOT, cost

SWITCH = "NULL_GPU_HOST_TENSORS"
GPT = """\
import sys, torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        split = lambda y: y.unflatten(-1, (16, -1)).transpose(1, 2)
        q, k, v = map(split, self.qkv(self.norms[0](x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
def init(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None: nn.init.zeros_(module.bias)
layers, width, vocabulary = int(sys.argv[1]), 1024, 50257
blocks = (Block(width) for _ in range(layers))
model = nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary))
model.apply(init).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    tokens = torch.randint(vocabulary, (4, 512), device="cuda")
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LLAMA = """\
import os, sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig
layers = int(sys.argv[1])
hidden, heads, ffn = (4096, 32, 14336) if layers <= 32 else (8192, 64, 28672)
config = LlamaConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=8,
    intermediate_size=ffn, vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0,
)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = AutoModelForCausalLM.from_config(config)
model.gradient_checkpointing_enable()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(128256, (1, 2048), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def cost_and_peak(script: Path, layers: int, card: str, *, is_written: bool) -> tuple[float, float, int]:
    """Return seconds of a processor and gigabytes of one run, and the peak that it found."""
    command = [sys.executable, str(ROOT / "main.py"), "run", "--on", card, "--save-dir", "out"]
    command += ["--rank", "0"] * ("x" in card) + [script.name, str(layers)]
    used = cost(command, script.parent, {SWITCH: "real" if is_written else ""})
    peak = next(script.parent.glob("out/**/peak.json"))
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9, json.loads(peak.read_text())["peak_bytes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--on")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    layers = arguments.layers or (32 if arguments.llama else 96)
    card = arguments.on or ("8xh100" if arguments.llama else "h100")
    sides = (False,) if arguments.llama and layers > 32 else (False, True)
    found: dict[bool, list[tuple[float, float, int]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(LLAMA if arguments.llama else GPT)
        for _ in range(arguments.repeats):
            for side in sides:
                found[side].append(cost_and_peak(script, layers, card, is_written=side))
    for side, runs in found.items():
        seconds, memory = (statistics.median(run[place] for run in runs) for place in (0, 1))
        print(
            f"{'all written' if side else 'unwritten':<12}{seconds:8.1f} s{memory:8.2f} GB   peak {runs[0][2]:,} bytes"
        )
    if len(sides) == 2:
        for place, name in enumerate(("seconds", "memory")):
            ratios = [left[place] / right[place] for left, right in zip(*found.values(), strict=True)]
            print(f"{name:<12}{statistics.median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return int(len({run[2] for runs in found.values() for run in runs}) > 1)


if __name__ == "__main__":
    sys.exit(main())
