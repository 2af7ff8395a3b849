"""Embeddings of a corpus joined at the end, beside the pieces (lotus-data/lotus#16); on h100:4GiB: results kept or copy by cat."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.embed = nn.Embedding(30000, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, tokens):
        return nn.functional.normalize(self.layers(self.embed(tokens).mean(1)), dim=-1)


model = Encoder().cuda().eval()
documents, batch = 480_000, 4096


def embed_all():
    joined = torch.empty(documents, 1024, device="cuda")
    with torch.no_grad():
        for first in range(0, documents, batch):
            tokens = torch.randint(0, 30000, (min(batch, documents - first), 32), device="cuda")
            joined[first : first + len(tokens)] = model(tokens)
    return joined


index = embed_all()
query = torch.randn(1, 1024, device="cuda")
print((index @ query.T).topk(10, dim=0).indices.flatten())
