# karpathy/nanoGPT#236; h100:8GiB
"""A language model is trained further from the checkpoint of an earlier run, with an average of its weights for evaluation."""

import os
import tempfile

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words=32_000, width=1024, layers=10, heads=16, length=512):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(x, self.words.weight).flatten(0, 1), targets.flatten())


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def earlier_run(path):
    """Writes the file that a run left when it was stopped in step 1000."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in GPT().state_dict().items()}
    group = make_optimizer(nn.Linear(1, 1)).state_dict()["param_groups"][0] | {"params": list(range(len(shapes)))}
    moments = [{"step": torch.tensor(1000.0), "exp_avg": torch.zeros(s), "exp_avg_sq": torch.zeros(s)} for s in shapes.values()]
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    average = {name: torch.zeros(shape) for name, shape in shapes.items()}
    torch.save({"model": weights, "ema": average, "optimizer": {"state": dict(enumerate(moments)), "param_groups": [group]}, "step": 1000}, path)


def train(path, steps, device="cuda"):
    checkpoint = torch.load(path, map_location=device)
    model, average = GPT().to(device), GPT().to(device).requires_grad_(False)
    model.load_state_dict(checkpoint["model"])
    average.load_state_dict(checkpoint["ema"])
    optimizer = make_optimizer(model)
    optimizer.load_state_dict(checkpoint["optimizer"])
    first = checkpoint["step"]
    for step in range(first, first + steps):
        tokens = torch.randint(0, 32_000, (8, 513)).to(device)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters()):
                kept.lerp_(parameter, 1e-3)
        print(step, loss.item())


with tempfile.TemporaryDirectory() as folder:
    earlier_run(os.path.join(folder, "ckpt.pt"))
    train(os.path.join(folder, "ckpt.pt"), steps=4)
