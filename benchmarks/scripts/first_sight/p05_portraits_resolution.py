# control; h100:6GiB
"""Trains a style-based GAN on portraits, generator and discriminator in turn, with a gradient penalty every sixteenth step."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


def width_at(size, base=8192, most=256):
    return min(base // size, most)


class StyledConv(nn.Module):
    def __init__(self, inp, out, style):
        super().__init__()
        self.conv, self.affine, self.noise = nn.Conv2d(inp, out, 3, padding=1), nn.Linear(style, inp), nn.Parameter(torch.zeros(()))

    def forward(self, x, w):
        x = self.conv(x * (1 + self.affine(w))[..., None, None])
        x = x + self.noise * torch.randn_like(x[:, :1])
        return F.leaky_relu(x, 0.2) * math.sqrt(2)


class Generator(nn.Module):
    def __init__(self, size, style=256):
        super().__init__()
        self.style = style
        self.mapping = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(style, style), nn.LeakyReLU(0.2))])
        self.constant = nn.Parameter(torch.randn(1, width_at(4), 4, 4))
        self.sizes = [2**i for i in range(3, int(math.log2(size)) + 1)]
        self.blocks = nn.ModuleList([nn.ModuleList([StyledConv(width_at(s // 2), width_at(s), style), StyledConv(width_at(s), width_at(s), style)]) for s in self.sizes])
        self.to_rgb = nn.ModuleList([nn.Conv2d(width_at(s), 3, 1) for s in self.sizes])

    def forward(self, z):
        w = self.mapping(F.normalize(z))
        x, rgb = self.constant.expand(len(z), -1, -1, -1), None
        for (first, second), to_rgb in zip(self.blocks, self.to_rgb):
            x = second(first(F.interpolate(x, scale_factor=2, mode="bilinear"), w), w)
            rgb = to_rgb(x) if rgb is None else F.interpolate(rgb, scale_factor=2, mode="bilinear") + to_rgb(x)
        return rgb


class Discriminator(nn.Module):
    def __init__(self, size):
        super().__init__()
        sizes = [2**i for i in range(int(math.log2(size)), 2, -1)]
        self.from_rgb = nn.Conv2d(3, width_at(size), 1)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(width_at(s), width_at(s), 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(width_at(s), width_at(s // 2), 3, 2, 1), nn.LeakyReLU(0.2)) for s in sizes]
        )
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(width_at(4) * 16, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))

    def forward(self, x):
        x = self.from_rgb(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def train(size=1024, batch=8, steps=34, d_reg_every=16, r1=10.0):
    generator, discriminator = Generator(size).cuda(), Discriminator(size).cuda()
    g_ema = copy.deepcopy(generator).eval().requires_grad_(False)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))
    photographs = torch.randint(0, 256, (32, 3, size, size), dtype=torch.uint8)
    for step in range(steps):
        real = photographs[torch.randint(0, len(photographs), (batch,))].cuda().float() / 127.5 - 1

        with torch.no_grad():
            fake = generator(torch.randn(batch, generator.style, device="cuda"))
        d_optimizer.zero_grad()
        (F.softplus(discriminator(fake)).mean() + F.softplus(-discriminator(real)).mean()).backward()
        if step % d_reg_every == 0:
            part = real[:2].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(discriminator(part).sum(), part, create_graph=True)
            (r1 / 2 * d_reg_every * gradient.square().sum((1, 2, 3)).mean()).backward()
        d_optimizer.step()

        discriminator.requires_grad_(False)
        g_optimizer.zero_grad()
        g_loss = F.softplus(-discriminator(generator(torch.randn(batch, generator.style, device="cuda")))).mean()
        g_loss.backward()
        g_optimizer.step()
        discriminator.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(g_ema.parameters()), list(generator.parameters()), 0.002)
        if step % 8 == 0:
            print(f"step {step}: g {g_loss.item():.3f}")


train()
