# akanimax/pro_gan_pytorch#12; h100:4GiB
"""Trains a pair of networks that make faces of 256 x 256, with the Wasserstein loss and a penalty of gradients."""

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, latent=128, channels=(128, 64, 32, 16, 8, 8)):
        super().__init__()
        self.first = nn.ConvTranspose2d(latent, channels[0], 8)
        self.blocks = nn.Sequential()
        for i, o in zip(channels, channels[1:]):
            self.blocks.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.2)))
        self.to_rgb = nn.Conv2d(channels[-1], 3, 1)

    def forward(self, z):
        return self.to_rgb(self.blocks(self.first(z[..., None, None])))


class Discriminator(nn.Module):
    def __init__(self, channels=(8, 8, 16, 32, 64, 128)):
        super().__init__()
        self.from_rgb = nn.Conv2d(3, channels[0], 1)
        self.blocks = nn.Sequential()
        for i, o in zip(channels, channels[1:]):
            self.blocks.append(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)))
        self.last = nn.Conv2d(channels[-1], 1, 8)

    def forward(self, x):
        return self.last(self.blocks(self.from_rgb(x))).flatten()


class WGANGP:
    def __init__(self, dis):
        self.dis = dis

    def gradient_penalty(self, real, fake, weight=10):
        epsilon = torch.rand(len(real), 1, 1, 1, device=real.device)
        merged = (epsilon * real + (1 - epsilon) * fake).detach().requires_grad_(True)
        op = self.dis(merged)
        op.backward(torch.ones_like(op), create_graph=True)
        gradient = merged.grad.flatten(1)
        return weight * (gradient.norm(p=2, dim=1) - 1).square().mean()

    def dis_loss(self, real, fake, drift=0.001):
        penalty = self.gradient_penalty(real, fake)
        on_real, on_fake = self.dis(real), self.dis(fake)
        return on_fake.mean() - on_real.mean() + drift * on_real.square().mean() + penalty

    def gen_loss(self, fake):
        return -self.dis(fake).mean()


gen, dis = Generator().cuda(), Discriminator().cuda()
gen_optim = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
dis_optim = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.0, 0.99))
loss = WGANGP(dis)
for step in range(20):
    real = torch.empty(64, 3, 256, 256, device="cuda").uniform_(-1, 1)
    with torch.no_grad():
        fake = gen(torch.randn(len(real), 128, device="cuda"))
    dis_optim.zero_grad()
    d = loss.dis_loss(real, fake)
    d.backward()
    dis_optim.step()
    gen_optim.zero_grad()
    g = loss.gen_loss(gen(torch.randn(len(real), 128, device="cuda")))
    g.backward()
    gen_optim.step()
    print(step, d.item(), g.item())
