"""Train a GPT-2 of 124 million parameters on random tokens: `torch-timeline run --on rtx-4090 examples/gpt.py`.

Shape letters: B batch, T tokens, W width, H heads, V vocabulary.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention, then an MLP four times as wide, [B, T, W] to [B, T, W]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and the MLP make to what comes in."""
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token ids [B, T] to the logits of each next token [B, T, V]."""

    def __init__(self, vocabulary: int, context: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    """Train for some steps with AdamW."""
    options = argparse.ArgumentParser()
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--steps", type=int, default=100)
    asked = options.parse_args()
    model = GPT(vocabulary=50257, context=1024, width=768, num_layers=12, num_heads=12).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4)
    for _ in range(asked.steps):
        batch = torch.randint(0, 50257, (asked.batch_size, 1025), device="cuda")
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
