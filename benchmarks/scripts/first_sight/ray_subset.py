# chenhsuanlin/bundle-adjusting-NeRF#41; h100:3GiB
"""A radiance field and the poses of its cameras are fitted together to rays of all pictures."""

import torch
from torch import nn
import torch.nn.functional as F


class Camera(nn.Module):
    def __init__(self, pictures, height, width):
        super().__init__()
        self.height, self.width = height, width
        self.se3 = nn.Parameter(torch.zeros(pictures, 3, 4))
        self.register_buffer("initial", torch.eye(3, 4).repeat(pictures, 1, 1))
        intrinsics = torch.tensor([[800.0, 0, width / 2], [0, 800.0, height / 2], [0, 0, 1]])
        self.register_buffer("intr_inverse", intrinsics.inverse().repeat(pictures, 1, 1))

    def get_center_and_ray(self, pose):
        y, x = torch.meshgrid(torch.arange(self.height, device="cuda") + 0.5, torch.arange(self.width, device="cuda") + 0.5, indexing="ij")
        grid = torch.stack([x, y], -1).view(-1, 2).repeat(len(pose), 1, 1)
        grid_3d = F.pad(grid, (0, 1), value=1.0) @ self.intr_inverse.transpose(1, 2)
        center_3d = torch.zeros_like(grid_3d)
        grid_3d = F.pad(grid_3d, (0, 1), value=1.0) @ pose.transpose(1, 2)
        center_3d = F.pad(center_3d, (0, 1), value=1.0) @ pose.transpose(1, 2)
        return center_3d, grid_3d - center_3d

    def pose(self):
        return self.initial + self.se3


class NeRF(nn.Module):
    def __init__(self, bands=10, width=256):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(bands))
        self.mlp = nn.Sequential(nn.Linear(6 * bands, width), nn.ReLU(), *[m for _ in range(6) for m in (nn.Linear(width, width), nn.ReLU())], nn.Linear(width, 4))

    def render(self, center, ray, samples=64):
        depth = torch.linspace(2, 6, samples, device="cuda")
        points = center[..., None, :] + depth[:, None] * ray[..., None, :]
        angles = (points[..., None] * self.frequencies).flatten(-2)
        rgb, density = self.mlp(torch.cat([angles.sin(), angles.cos()], -1)).split([3, 1], -1)
        alpha = 1 - torch.exp(-density.relu() * (4 / samples))
        weights = alpha * torch.cumprod(1 - alpha + 1e-10, 2)
        return (weights * rgb.sigmoid()).sum(2)


height = width = 800
images = torch.rand(48, 3, height, width).cuda()
camera, nerf = Camera(48, height, width).cuda(), NeRF().cuda()
optimizer = torch.optim.Adam([*nerf.parameters(), *camera.parameters()], lr=5e-4)
for iteration in range(4):
    ray_idx = torch.randperm(height * width, device="cuda")[: 1024 // len(images)]
    center, ray = camera.get_center_and_ray(camera.pose())
    center, ray = center[:, ray_idx], ray[:, ray_idx]
    rgb = nerf.render(center, ray)
    target = images.flatten(2).transpose(1, 2)[:, ray_idx]
    loss = F.mse_loss(rgb, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(iteration, loss.item())
