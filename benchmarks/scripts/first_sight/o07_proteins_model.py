# control; h100:8GiB
"""Continues the pretraining of a protein language model on masked residues, in mixed precision with recomputed layers."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Proteins(Dataset):
    def __init__(self, proteins, longest=384, residues=33):
        self.proteins, self.longest, self.residues = proteins, longest, residues

    def __len__(self):
        return self.proteins

    def __getitem__(self, i):
        tokens = torch.randint(4, self.residues - 1, (self.longest,))
        chosen = torch.rand(self.longest) < 0.15
        return tokens.masked_fill(chosen, self.residues - 1), tokens.masked_fill(~chosen, -100)


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("frequency", 1.0 / 10_000 ** (torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, x):
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * self.frequency
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.rotary = heads, Rotary(width // heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ProteinModel(nn.Module):
    def __init__(self, residues=33, width=1280, layers=33, heads=20):
        super().__init__()
        self.embed = nn.Embedding(residues, width, padding_idx=1)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, residues))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


def optimizer_for(model, lr=1e-5, weight_decay=0.01):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def train(model, loader, optimizer, accumulate=4):
    model.train()
    for step, (tokens, labels) in enumerate(loader):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens.cuda())
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.cuda().flatten(), ignore_index=-100)
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(f"step {step + 1}: {loss.item():.3f}")


with torch.device("cuda"):
    model = ProteinModel()
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters")
train(model, DataLoader(Proteins(32), batch_size=4), optimizer_for(model))
