"""Llama 3.1 8B with FSDP2, an ordinary script of torchrun's; nothing in it knows of this program.

uv run main.py run --on 8xh100 examples/fsdp_job.py --batch-size 2 --checkpoint
uv run main.py predict --on 64xa100-40 examples/fsdp_job.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HIDDEN, NUM_HEADS, NUM_KEYS, HEAD = 128256, 4096, 14336, 32, 8, 128


class Block(nn.Module):
    """Attention and a gated linear unit, each behind a norm."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.attention_norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, NUM_HEADS * HEAD, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * NUM_KEYS * HEAD, bias=False)
        self.out = nn.Linear(NUM_HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block, recomputed in backward where it is asked for."""
        if self.is_checkpointed:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Attention, then the gated linear unit; `[batch, length, WIDTH]` in and out."""
        normed = self.attention_norm(x)
        query = self.query(normed).unflatten(-1, (NUM_HEADS, HEAD)).transpose(1, 2)
        key, value = self.key_value(normed).unflatten(-1, (2 * NUM_KEYS, HEAD)).transpose(1, 2).chunk(2, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def build(num_layers: int, *, is_checkpointed: bool) -> nn.Sequential:
    """Every block is sharded by itself, so that one at a time is whole."""
    with torch.device("meta"):
        blocks = [Block(is_checkpointed=is_checkpointed) for _ in range(num_layers)]
        head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))
        model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, head)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model.to_empty(device="cuda")


def main() -> None:
    """Train for some steps on tokens that are drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block in backward")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    model = build(arguments.layers, is_checkpointed=arguments.checkpoint)
    optimizer = torch.optim.AdamW(model.parameters())
    size = (arguments.batch_size, arguments.length)
    for _ in range(arguments.steps):
        tokens = torch.randint(VOCABULARY, size, device=device)
        logits = model(tokens)
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
