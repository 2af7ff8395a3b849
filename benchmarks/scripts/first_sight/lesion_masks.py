# ImprintLab/MedSegDiff#158; h100:4GiB
"""A diffusion model draws five masks of lesions for each picture, with a solver of few steps; their mean is the answer."""

import torch
from torch import nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, inlet, outlet, times=128):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inlet), nn.Conv2d(inlet, outlet, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outlet), nn.Conv2d(outlet, outlet, 3, padding=1)
        self.time, self.skip = nn.Linear(times, outlet), nn.Conv2d(inlet, outlet, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[..., None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, width=32, depth=3, times=128):
        super().__init__()
        self.times, sizes = times, [width * 2 ** n for n in range(depth)]
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(a, b) for a, b in zip([width, *sizes], sizes)])
        self.up = nn.ModuleList([ResBlock(2 * b, a) for a, b in zip([width, *sizes], sizes)][::-1])
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, mask, picture, t):
        angles = t[:, None] * torch.exp(-torch.arange(self.times // 2, device=t.device) / 8)
        time, x, kept = torch.cat([angles.sin(), angles.cos()], 1), self.first(torch.cat([picture, mask], 1)), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), time)
        return self.last(x)


class DPMSolver:
    def __init__(self, model, betas):
        self.model, self.alphas = model, torch.cumprod(1 - betas, 0)

    def sample(self, picture, steps):
        x = torch.randn(len(picture), 1, *picture.shape[2:], device=picture.device)
        times = torch.linspace(len(self.alphas) - 1, 0, steps + 1).long().tolist()
        for now, then in zip(times[:-1], times[1:]):
            noise = self.model(x, picture, torch.full((len(x),), float(now), device=x.device))
            start = (x - (1 - self.alphas[now]).sqrt() * noise) / self.alphas[now].sqrt()
            x = self.alphas[then].sqrt() * start + (1 - self.alphas[then]).sqrt() * noise
        return x


def predict(solver, pictures, ensemble=5, steps=4):
    for number, picture in enumerate(pictures):
        picture = picture[None].cuda()
        samples = []
        for _ in range(ensemble):
            sample = solver.sample(picture, steps)
            samples.append(sample[:, -1])
        mean = torch.stack(samples).mean(0)
        yield number, (mean > 0.5).cpu()


model = UNet().cuda().eval()
solver = DPMSolver(model, torch.linspace(1e-4, 0.02, 1000).cuda())
for number, mask in predict(solver, torch.rand(3, 3, 256, 256)):
    print(number, tuple(mask.shape))
