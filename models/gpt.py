"""A small GPT: a decoder-only transformer on random tokens, the example of a language model to profile.

Shape letters: B batch, T tokens, W width, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.workloads.module_steps import SupervisedWorkload


class Attention(nn.Module):
    """Causal self-attention, [B, T, W] to [B, T, W]."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Every token looks at itself and those before it."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.n_heads, width // self.n_heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return result


class Block(nn.Module):
    """Attention, then an MLP four times as wide, each behind a norm and beside a skip."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, n_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] to [B, T, W]."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """Token ids [B, T] to the logits of each next token [B, T, V]."""

    def __init__(
        self, *, vocabulary: int = 256, context: int = 64, width: int = 64, n_layers: int = 2, n_heads: int = 4
    ) -> None:
        super().__init__()
        if width % n_heads:
            raise ValueError(f"A width of {width} cannot be divided among {n_heads} heads.")
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # one tensor for both ends, as GPT-2 has it
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits of each next token."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all tokens; [B, T, V] and [B, T] to a scalar."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(
    *,
    batch_size: int = 8,
    vocabulary: int = 256,
    context: int = 64,
    width: int = 64,
    n_layers: int = 2,
    n_heads: int = 4,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> SupervisedWorkload:
    """Build the training of a GPT with AdamW on random tokens; GPT-2's smallest is 50257, 1024, 768, 12, 12.

    Args:
        batch_size: Sequences B of a batch.
        vocabulary: Different tokens V.
        context: Tokens T of a sequence.
        width: Channels W inside the model.
        n_layers: Blocks.
        n_heads: Heads H of each block's attention.
        device: Where to train.
        seed: Seed of weights and tokens.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = GPT(vocabulary=vocabulary, context=context, width=width, n_layers=n_layers, n_heads=n_heads)
    model.to(device)
    generator = torch.Generator().manual_seed(seed)

    def next_batch() -> tuple[Tensor, ...]:
        text = torch.randint(vocabulary, (batch_size, context + 1), generator=generator)
        return tuple(part.contiguous().to(device, non_blocking=True) for part in (text[:, :-1], text[:, 1:]))

    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        next_batch=next_batch,
        loss=next_token_loss,
        device=device,
    )
