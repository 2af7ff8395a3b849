# kwea123/nerf_pl#61; h100:4GiB
"""Pictures of a scene from new places by two networks of radiance, the second of which looks closer where the first saw something."""

import math
from collections import defaultdict

import torch
from torch import nn


class Embedding(nn.Module):
    def __init__(self, frequencies):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(frequencies))

    def forward(self, x):
        angles = (x[..., None] * self.frequencies).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], -1)


class NeRF(nn.Module):
    def __init__(self, width=256, depth=8):
        super().__init__()
        self.places, self.directions = Embedding(10), Embedding(4)
        sizes = [63] + [width] * depth
        self.trunk = nn.Sequential(*[nn.Sequential(nn.Linear(a, b), nn.ReLU(True)) for a, b in zip(sizes, sizes[1:])])
        self.sigma = nn.Linear(width, 1)
        self.rgb = nn.Sequential(nn.Linear(width + 27, width // 2), nn.ReLU(True), nn.Linear(width // 2, 3), nn.Sigmoid())

    def forward(self, points, directions):
        x = self.trunk(self.places(points))
        return torch.cat([self.rgb(torch.cat([x, self.directions(directions)], -1)), self.sigma(x)], -1)


def inference(model, rays, z_vals, chunk=32_768):
    origins, directions = rays[:, :3], rays[:, 3:6]
    points = (origins[:, None] + directions[:, None] * z_vals[..., None]).flatten(0, 1)
    directions = directions[:, None].expand(-1, z_vals.shape[1], -1).flatten(0, 1)
    out = torch.cat([model(p, d) for p, d in zip(points.split(chunk), directions.split(chunk))]).view(*z_vals.shape, 4)
    deltas = torch.cat([z_vals[:, 1:] - z_vals[:, :-1], torch.full_like(z_vals[:, :1], 1e10)], 1)
    alphas = 1 - torch.exp(-deltas * torch.relu(out[..., 3]))
    shifted = torch.cat([torch.ones_like(alphas[:, :1]), 1 - alphas + 1e-10], 1)
    weights = alphas * shifted.cumprod(1)[:, :-1]
    return (weights[..., None] * out[..., :3]).sum(1), (weights * z_vals).sum(1), weights


def sample_pdf(bins, weights, count):
    cdf = (weights + 1e-5).cumsum(1)
    cdf = cdf / cdf[:, -1:]
    u = torch.rand(len(bins), count, device=bins.device)
    index = torch.searchsorted(cdf, u, right=True).clamp(max=bins.shape[1] - 1)
    return bins.gather(1, index)


def render_rays(models, rays, samples=64, importance=64):
    z_vals = 2.0 + 4.0 * torch.linspace(0, 1, samples, device=rays.device).expand(len(rays), samples)
    result = {}
    result["rgb_coarse"], result["depth_coarse"], weights = inference(models[0], rays, z_vals)
    result["weights_coarse"], result["opacity_coarse"] = weights, weights.sum(1)
    finer = sample_pdf(0.5 * (z_vals[:, :-1] + z_vals[:, 1:]), weights[:, 1:-1], importance)
    z_vals = torch.cat([z_vals, finer], 1).sort(1).values
    result["rgb_fine"], result["depth_fine"], weights = inference(models[1], rays, z_vals)
    result["weights_fine"], result["z_vals_fine"], result["opacity_fine"] = weights, z_vals, weights.sum(1)
    return result


@torch.no_grad()
def batched_inference(models, rays, chunk=8192):
    results = defaultdict(list)
    for i in range(0, len(rays), chunk):
        for k, v in render_rays(models, rays[i : i + chunk]).items():
            results[k] += [v]
    return {k: torch.cat(v) for k, v in results.items()}


def rays_of_view(height, width, angle):
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    directions = torch.stack([x * math.cos(angle) + math.sin(angle), y, -torch.ones_like(x)], -1).view(-1, 3)
    return torch.cat([torch.zeros_like(directions), directions], 1)


models = [NeRF().cuda().eval() for _ in range(2)]
psnrs = []
for view in range(3):
    rays, truth = rays_of_view(1134, 1512, 0.1 * view).cuda(), torch.rand(1134, 1512, 3)
    results = batched_inference(models, rays)
    picture = results["rgb_fine"].view(1134, 1512, 3).cpu()
    psnrs.append(-10 * torch.log10((picture - truth).square().mean()).item())
print(psnrs)
