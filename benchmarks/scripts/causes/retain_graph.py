"""Backward retains its graph (GBLin5566/toward-controlled-generation-of-text-pytorch#9); on 5GiB: graph retained."""

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.encoder = nn.Sequential(
            *[nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(12)]
        )
        self.decoder = nn.Sequential(
            *[nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(12)]
        )

    def forward(self, x):
        z = self.encoder(x)
        return z, self.decoder(z)


model, critic = Generator().cuda(), nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
opt_e, opt_g = torch.optim.Adam(model.encoder.parameters()), torch.optim.Adam(model.decoder.parameters())
opt_d = torch.optim.Adam(critic.parameters())
for _step in range(20):
    x = torch.randn(22000, 512, device="cuda")
    z, out = model(x)
    loss_vae = (out - x).square().mean()
    loss_c = critic(out).mean()
    loss_d = -critic(out.detach()).mean() + critic(x).mean()
    opt_e.zero_grad()
    loss_vae.backward(retain_graph=True)
    opt_g.zero_grad()
    loss_c.backward(retain_graph=True)
    opt_d.zero_grad()
    loss_d.backward(retain_graph=True)
    opt_e.step()
    opt_g.step()
    opt_d.step()
