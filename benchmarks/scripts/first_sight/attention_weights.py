"""Weights of attention that are returned and thrown away (lyuwenyu/RT-DETR#678); on h100:8GiB: attention matrix."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 8, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, width))

    def forward(self, src):
        attended, _ = self.self_attn(src, src, src)
        src = self.norm1(src + attended)
        return self.norm2(src + self.mlp(src))


backbone = nn.Conv2d(3, 256, 16, 16).cuda()
encoder = nn.Sequential(*[Layer() for _ in range(3)]).cuda()
head = nn.Linear(256, 4).cuda()
optimizer = torch.optim.AdamW([*backbone.parameters(), *encoder.parameters(), *head.parameters()])
for step in range(5):
    images = torch.randn(2, 3, 1280, 1280, device="cuda")
    tokens = backbone(images).flatten(2).transpose(1, 2)
    loss = head(encoder(tokens)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
