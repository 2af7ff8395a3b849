# control; h100:4GiB
"""Trains a diffusion model of floor plans with an average of its weights, and draws samples after each epoch."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def time_embedding(t, width=128):
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time=128):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(time, outputs)
        self.second = nn.Sequential(nn.GroupNorm(8, outputs), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).flatten(1, 2).view_as(x))


class UNet(nn.Module):
    def __init__(self, width=64, multiples=(1, 2, 4)):
        super().__init__()
        widths = [width * m for m in multiples]
        self.inputs = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.ModuleList(ResBlock(widths[max(i - 1, 0)], w) for i, w in enumerate(widths))
        self.middle = nn.ModuleList([ResBlock(widths[-1], widths[-1]), ResBlock(widths[-1], widths[-1])])
        self.attention = Attention(widths[-1])
        self.up = nn.ModuleList(ResBlock(w + widths[min(i + 1, len(widths) - 1)], w) for i, w in reversed(list(enumerate(widths))))
        self.output = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x, t):
        t, x, skips = time_embedding(t), self.inputs(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle[1](self.attention(self.middle[0](x, t)), t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1), t)
        return self.output(x)


class Diffusion:
    def __init__(self, steps=1000):
        self.steps = steps
        self.kept = torch.cos((torch.arange(steps) / steps + 0.008) / 1.008 * math.pi / 2).square().cuda()

    def loss(self, model, x):
        t = torch.randint(0, self.steps, (len(x),), device=x.device)
        noise, kept = torch.randn_like(x), self.kept[t].view(-1, 1, 1, 1)
        return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(self, model, number, size=64, steps=25):
        model.eval()
        x = torch.randn(number, 1, size, size, device="cuda")
        times = torch.linspace(self.steps - 1, 0, steps).long().tolist()
        for now, following in zip(times, times[1:]):
            noise = model(x, torch.full((number,), now, device="cuda"))
            clean = ((x - (1 - self.kept[now]).sqrt() * noise) / self.kept[now].sqrt()).clamp(-1, 1)
            x = self.kept[following].sqrt() * clean + (1 - self.kept[following]).sqrt() * noise
        return x.cpu()


plans = TensorDataset((torch.rand(1024, 1, 64, 64) > 0.7).float() * 2 - 1)
model, diffusion, samples = UNet().cuda(), Diffusion(), []
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for epoch in range(2):
    model.train()
    for step, (x,) in enumerate(DataLoader(plans, batch_size=64, shuffle=True)):
        loss = diffusion.loss(model, x.cuda()) / 2
        loss.backward()
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.005)
    samples.append(diffusion.sample(average, 128))
    print(epoch, 2 * loss.item(), samples[-1].shape)
