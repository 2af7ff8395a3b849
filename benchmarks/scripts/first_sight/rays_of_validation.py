# kwea123/ngp_pl#44; h100:4GiB
"""A radiance field is trained on rays that are drawn from all pictures, and validated on whole pictures."""

import torch
from torch import nn
import torch.nn.functional as F


class Field(nn.Module):
    def __init__(self, frequencies=6, width=128):
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(frequencies), persistent=False)
        self.density = nn.Sequential(nn.Linear(6 * frequencies, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))
        self.color = nn.Sequential(nn.Linear(15 + 3, width), nn.ReLU(), nn.Linear(width, 3), nn.Sigmoid())

    def forward(self, points, directions):
        angles = (points[..., None] * self.scales).flatten(-2)
        h = self.density(torch.cat([angles.sin(), angles.cos()], -1))
        return F.softplus(h[..., 0]), self.color(torch.cat([h[..., 1:], directions], -1))


def render(field, origins, directions, samples=64):
    depths = torch.linspace(2.0, 6.0, samples, device=origins.device)
    points = origins[:, None] + directions[:, None] * depths[:, None]
    sigma, rgb = field(points, directions[:, None].expand_as(points))
    alpha = 1 - (-sigma * (depths[1] - depths[0])).exp()
    seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]], 1), 1)
    return ((alpha * seen)[..., None] * rgb).sum(1)


class Pictures:
    """Rays and colors of square pictures, in host memory."""

    def __init__(self, count=8, size=400):
        self.origins, self.directions = torch.randn(count, size * size, 3), F.normalize(torch.randn(count, size * size, 3), dim=-1)
        self.colors = torch.rand(count, size * size, 3)

    def batch(self, rays):
        which, where = torch.randint(len(self.colors), (rays,)), torch.randint(self.colors.shape[1], (rays,))
        return [part[which, where].cuda() for part in (self.origins, self.directions, self.colors)]

    def picture(self, index):
        return [part[index].cuda() for part in (self.origins, self.directions, self.colors)]


train, validation = Pictures(), Pictures(2)
field = Field().cuda()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for epoch in range(2):
    for step in range(10):
        origins, directions, colors = train.batch(4096)
        loss = F.mse_loss(render(field, origins, directions), colors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for index in range(2):
            origins, directions, colors = validation.picture(index)
            error = F.mse_loss(render(field, origins, directions), colors)
            print(epoch, index, -10 * error.log10().item())
