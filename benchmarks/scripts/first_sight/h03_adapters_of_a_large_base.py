# control; h100:8GiB
"""Adapters of low rank for a frozen language model in bfloat16; the layers are checkpointed."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class LoRA(nn.Module):
    def __init__(self, inlet, outlet, rank=16):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outlet, inlet), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.empty(rank, inlet)), nn.Parameter(torch.zeros(outlet, rank))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = LoRA(width, 3 * width), LoRA(width, width)
        self.gate, self.up, self.down = LoRA(width, 3 * width), LoRA(width, 3 * width), LoRA(3 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LM(nn.Module):
    def __init__(self, words=32_000, width=3072, layers=28, heads=24):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.linear(self.norm(x), self.words.weight)


def load_model():
    with torch.device("meta"):
        model = LM()
    model = model.to(torch.bfloat16).to_empty(device="cuda")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".a", ".b")))
    return model


model = load_model()
adapters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=2e-4, fused=True)
for step in range(3):
    tokens = torch.randint(0, 32_000, (2, 1025), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
