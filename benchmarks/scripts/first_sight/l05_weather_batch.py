# control; h100:8GiB
"""Trains a transformer that forecasts the weather of the globe from patches of its fields."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    def __init__(self, fields=48, patch=4, width=512, depth=10, heads=8):
        super().__init__()
        self.embed = nn.Conv2d(fields, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, 32 * 64, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head, self.shuffle = nn.Conv2d(width, fields * patch**2, 1), nn.PixelShuffle(patch)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        tokens = self.blocks(tokens).transpose(1, 2).unflatten(2, (32, 64))
        return x + self.shuffle(self.head(tokens))


model = Forecaster().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
latitude = torch.linspace(-89, 89, 128, device="cuda").deg2rad().cos().view(1, 1, 128, 1)
for step in range(3):
    today, tomorrow = torch.randn(24, 48, 128, 256).cuda(), torch.randn(24, 48, 128, 256).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        forecast = model(today)
    loss = ((forecast.float() - tomorrow).square() * latitude).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
