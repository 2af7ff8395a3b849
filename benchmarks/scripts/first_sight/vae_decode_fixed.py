"""A decoder that is given the whole batch of latents at once (huggingface/diffusers#1150); on h100:6GiB: decode one at a time."""

import torch
from torch import nn
import torch.nn.functional as F


class Up(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x):
        x = self.conv(F.silu(self.norm(x)))
        return F.interpolate(x, scale_factor=2, mode="nearest")


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 512, 3, padding=1)
        self.ups = nn.Sequential(Up(512, 512), Up(512, 256), Up(256, 128))
        self.norm, self.last = nn.GroupNorm(32, 128), nn.Conv2d(128, 3, 3, padding=1)

    def forward(self, z):
        return self.last(F.silu(self.norm(self.ups(self.first(z)))))


denoiser = nn.Sequential(nn.Conv2d(4, 320, 3, padding=1), *[nn.Sequential(nn.SiLU(), nn.Conv2d(320, 320, 3, padding=1)) for _ in range(8)], nn.Conv2d(320, 4, 3, padding=1))
denoiser, vae = denoiser.half().cuda(), Decoder().half().cuda()


@torch.no_grad()
def generate(batch, steps=10):
    latents = torch.randn(batch, 4, 64, 64, device="cuda", dtype=torch.half)
    for _ in range(steps):
        latents = latents - 0.1 * denoiser(latents)
    images = torch.cat([vae(z[None]) for z in latents])
    return (images / 2 + 0.5).clamp(0, 1).float().cpu()


for batch in (1, 4, 48):
    print(generate(batch).shape)
