# control; h100:6GiB
"""A diffusion transformer is trained with AdamW, and an average of its weights is kept for sampling."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class DiT(nn.Module):
    def __init__(self, channels=16, width=1280, layers=16):
        super().__init__()
        self.inlet, self.outlet = nn.Linear(channels, width), nn.Linear(width, channels)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x, t):
        return self.outlet(self.blocks(self.inlet(x) + self.time(t)[:, None]))


model = DiT().cuda()
average = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(4):
    latents, t = torch.randn(4, 256, 16).cuda(), torch.rand(4, 1).cuda()
    noise = torch.randn_like(latents)
    loss = F.mse_loss(model(latents * (1 - t[..., None]) + noise * t[..., None], t), noise - latents)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, parameter in zip(average.parameters(), model.parameters()):
            kept.lerp_(parameter, 1e-3)
    print(step, loss.item())
