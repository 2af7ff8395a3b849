# control; h100:4GiB
"""Trains a small denoising diffusion model of flower pictures in mixed precision with averaged weights, and draws samples."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, pictures, size=64):
        self.pictures, self.size = pictures, size

    def __len__(self):
        return self.pictures

    def __getitem__(self, i):
        return torch.full((3, self.size, self.size), (i % 255) / 127.5 - 1)


class ResBlock(nn.Module):
    def __init__(self, before, after, time):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(time, after)
        self.second = nn.Sequential(nn.GroupNorm(8, after), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        h = self.first(x) + self.time(t)[:, :, None, None]
        return self.second(h) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        h = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(h.transpose(-1, -2).reshape(x.shape))


class UNet(nn.Module):
    def __init__(self, width=96, time=256):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.inside, self.outside = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        widths = [width, width, 2 * width, 2 * width]
        self.down = nn.ModuleList(ResBlock(a, b, time) for a, b in zip(widths, widths[1:]))
        self.middle, self.attention = ResBlock(2 * width, 2 * width, time), Attention(2 * width)
        self.up = nn.ModuleList(ResBlock(a, b, time) for a, b in [(4 * width, 2 * width), (4 * width, width), (2 * width, width)])

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(1e4) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = t[:, None] * frequencies
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.inside(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.attention(self.middle(x, t))
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), t)
        return self.outside(x)


class Diffusion:
    def __init__(self, steps=1000, device="cuda"):
        self.steps = steps
        self.beta = torch.linspace(1e-4, 0.02, steps, device=device)
        self.alpha_bar = (1 - self.beta).cumprod(0)

    def loss(self, model, x):
        t, noise = torch.randint(self.steps, (len(x),), device=x.device), torch.randn_like(x)
        level = self.alpha_bar[t].view(-1, 1, 1, 1)
        return F.mse_loss(model(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(self, model, count, stride=100):
        x = torch.randn(count, 3, 64, 64, device=self.beta.device)
        for step in range(self.steps - 1, 0, -stride):
            now, before = self.alpha_bar[step], self.alpha_bar[max(step - stride, 0)]
            noise = model(x, torch.full((count,), step, device=x.device))
            x = before.sqrt() * (x - (1 - now).sqrt() * noise) / now.sqrt() + (1 - before).sqrt() * noise
        return x.clamp(-1, 1).cpu()


model, diffusion = UNet().cuda(), Diffusion()
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step, pictures in enumerate(DataLoader(Flowers(512), batch_size=64)):
    with torch.autocast("cuda", torch.bfloat16):
        loss = diffusion.loss(model, pictures.cuda())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters()):
            mean.lerp_(parameter, 1e-3)
    print(f"step {step}: {loss.item():.3f}")
print(diffusion.sample(average, 32).shape)
