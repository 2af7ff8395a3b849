# princeton-vl/RAFT#39; h100:5GiB
"""Optical flow between two frames of a film: correlations of all pairs, looked up in each refinement."""

import torch
from torch import nn
import torch.nn.functional as F


class CorrBlock:
    def __init__(self, fmap1, fmap2, num_levels=3, radius=4):
        self.num_levels, self.radius = num_levels, radius
        corr = self.corr(fmap1, fmap2)
        batch, h1, w1, _, h2, w2 = corr.shape
        corr = corr.reshape(batch * h1 * w1, 1, h2, w2)
        self.corr_pyramid = [corr]
        for _ in range(num_levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.corr_pyramid.append(corr)

    def __call__(self, coords):
        r, (batch, _, h1, w1) = self.radius, coords.shape
        coords = coords.permute(0, 2, 3, 1).reshape(batch * h1 * w1, 1, 1, 2)
        d = torch.linspace(-r, r, 2 * r + 1, device="cuda")
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1)[None]
        out = []
        for i, corr in enumerate(self.corr_pyramid):
            size = torch.tensor(corr.shape[-1:-3:-1], device="cuda") - 1
            grid = 2 * (coords / 2**i + delta) / size - 1
            out.append(F.grid_sample(corr, grid, align_corners=True).view(batch, h1, w1, -1))
        return torch.cat(out, -1).permute(0, 3, 1, 2)

    @staticmethod
    def corr(fmap1, fmap2):
        batch, dim, ht, wd = fmap1.shape
        corr = torch.matmul(fmap1.flatten(2).transpose(1, 2), fmap2.flatten(2))
        corr = corr.view(batch, ht, wd, 1, ht, wd)
        return corr / torch.sqrt(torch.tensor(dim).float())


class RAFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 96, 3, 2, 1), nn.ReLU(), nn.Conv2d(96, 128, 3, 2, 1))
        self.update = nn.Sequential(nn.Conv2d(3 * 81 + 2, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 2, 3, padding=1))

    def forward(self, image1, image2, iters=6):
        fmap1, fmap2 = self.fnet(image1), self.fnet(image2)
        corr_fn = CorrBlock(fmap1, fmap2)
        y, x = torch.meshgrid(*(torch.arange(n, device="cuda").float() for n in fmap1.shape[-2:]), indexing="ij")
        coords0 = torch.stack([x, y])[None]
        coords1 = coords0.clone()
        for _ in range(iters):
            corr = corr_fn(coords1)
            coords1 = coords1 + self.update(torch.cat([corr, coords1 - coords0], 1))
        return coords1 - coords0


model = RAFT().cuda().eval()
with torch.no_grad():
    for height, width in [(440, 1024), (720, 1280), (1088, 1440)]:
        image1, image2 = torch.rand(2, 1, 3, height, width, device="cuda")
        print(height, model(image1, image2).shape)
