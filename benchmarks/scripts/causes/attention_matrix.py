"""Scores of attention as a matrix (pytorch/pytorch#133206); on 16GiB: attention matrix."""

import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        weights = scores.softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, s, d))


class Block(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.n1, self.n2, self.a = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d, 8)
        self.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.m(self.n2(x))


model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for length in (1024, 2048, 4096, 8192):
    x = torch.randn(2, length, 512, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
