# control; h100:5GiB
"""A language model in bfloat16 with checkpointing, SDPA, micro batches of one and a fused optimizer."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=8192, width=2048, layers=15, heads=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    for micro in range(2):
        tokens = torch.randint(0, 8192, (1, 1025), device="cuda")
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
