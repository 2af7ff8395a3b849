# control; h100:8GiB
"""A transformer learns to take noise away from latents of pictures, by flow matching, under autocast."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width, elementwise_affine=False), nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out, self.modulate = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 6 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(F.silu(condition))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm1(x) * (1 + scale1) + shift1).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.down(F.gelu(self.up(self.norm2(x) * (1 + scale2) + shift2)))


class DiT(nn.Module):
    def __init__(self, channels=16, width=768, layers=12, heads=12, classes=1000):
        super().__init__()
        self.patches, self.out = nn.Linear(4 * channels, width), nn.Linear(width, 4 * channels)
        self.places = nn.Parameter(torch.zeros(1, 256, width))
        self.time, self.classes = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width)), nn.Embedding(classes, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, latents, times, labels):
        angles = times[:, None] * 1000 * 10_000 ** -torch.linspace(0, 1, 128, device=times.device)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.classes(labels)
        x = self.patches(F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)) + self.places
        for block in self.blocks:
            x = block(x, condition)
        return F.pixel_shuffle(self.out(x).transpose(1, 2).unflatten(2, (16, 16)), 2)


model = DiT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    latents, labels = torch.randn(96, 16, 32, 32).cuda(), torch.randint(0, 1000, (96,)).cuda()
    noise, times = torch.randn_like(latents), torch.rand(len(latents), device="cuda")
    mixed = torch.lerp(latents, noise, times[:, None, None, None])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        velocity = model(mixed, times, labels)
    loss = F.mse_loss(velocity.float(), noise - latents)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
