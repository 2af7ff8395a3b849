"""Copies that autocast caches in no_grad (ecmwf/anemoi-core#134); on 6GiB: copies of autocast."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin_self, self.lin_query = nn.Linear(width, width), nn.Linear(width, width)
        self.lin_key, self.projection = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.projection(torch.tanh(self.lin_self(h) + self.lin_query(h) * self.lin_key(h)))


class Model(nn.Module):
    def __init__(self, width=2048, depth=52):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Model().cuda().eval()
with torch.no_grad(), torch.autocast("cuda", torch.float16):
    for _batch in range(20):
        x = torch.randn(20_000, 2048, device="cuda")
        model(x).mean().item()
