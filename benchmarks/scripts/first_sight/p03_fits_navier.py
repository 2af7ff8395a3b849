# control; h100:3GiB
"""Solves the flow past a cylinder with a physics-informed network: residuals of Navier-Stokes, boundary values, measurements."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, inp=3, out=3, width=128, depth=6):
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(inp, width // 2), requires_grad=False)
        widths = [width] * depth + [out]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip([width] + widths, widths)])

    def forward(self, x):
        x = x @ self.frequencies
        x = torch.cat([x.sin(), x.cos()], -1)
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def gradient(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class NavierStokesPINN:
    def __init__(self, reynolds=100.0, points=20_000, device="cuda"):
        self.viscosity, self.points, self.device = 1 / reynolds, points, device
        self.net = MLP().to(device)
        self.weights = {"momentum": 1.0, "continuity": 1.0, "wall": 10.0, "data": 10.0}
        self.measured = torch.rand(2000, 3, device=device), torch.rand(2000, 2, device=device)

    def sample_interior(self):
        low, high = torch.tensor([-1.0, -2.0, 0.0]), torch.tensor([8.0, 2.0, 10.0])
        return (low + (high - low) * torch.rand(self.points, 3)).to(self.device).requires_grad_()

    def sample_cylinder(self):
        angle = 2 * torch.pi * torch.rand(1500, 1)
        return torch.cat([0.5 * angle.cos(), 0.5 * angle.sin(), 10 * torch.rand(1500, 1)], 1).to(self.device)

    def residuals(self, x):
        u, v, p = self.net(x).split(1, -1)
        du, dv, dp = gradient(u, x), gradient(v, x), gradient(p, x)
        momentum = []
        for value, d, pressure in ((u, du, dp[:, 0:1]), (v, dv, dp[:, 1:2])):
            second = gradient(d[:, 0:1], x)[:, 0:1] + gradient(d[:, 1:2], x)[:, 1:2]
            momentum.append(d[:, 2:3] + u * d[:, 0:1] + v * d[:, 1:2] + pressure - self.viscosity * second)
        return momentum, du[:, 0:1] + dv[:, 1:2]

    def losses(self):
        momentum, continuity = self.residuals(self.sample_interior())
        places, velocities = self.measured
        return {
            "momentum": sum(m.square().mean() for m in momentum),
            "continuity": continuity.square().mean(),
            "wall": self.net(self.sample_cylinder())[:, :2].square().mean(),
            "data": (self.net(places)[:, :2] - velocities).square().mean(),
        }

    def train_adam(self, iterations=40, every=10):
        optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        history = []
        for iteration in range(iterations):
            optimizer.zero_grad()
            losses = self.losses()
            sum(self.weights[name] * loss for name, loss in losses.items()).backward()
            optimizer.step()
            history.append({name: loss.item() for name, loss in losses.items()})
            if iteration % every == 0:
                print(f"adam {iteration}:", history[-1])
        return history

    def train_lbfgs(self, steps=3):
        optimizer = torch.optim.LBFGS(self.net.parameters(), lr=0.5, max_iter=5, history_size=20)

        def closure():
            optimizer.zero_grad()
            loss = sum(self.weights[name] * loss for name, loss in self.losses().items())
            loss.backward()
            return loss

        for step in range(steps):
            print(f"lbfgs {step}: {optimizer.step(closure).item():.4e}")

    @torch.no_grad()
    def predict(self, time, width=900, height=400, chunk=60_000):
        ys, xs = torch.meshgrid(torch.linspace(-2, 2, height), torch.linspace(-1, 8, width), indexing="ij")
        places = torch.stack([xs, ys, torch.full_like(xs, time)], -1).view(-1, 3)
        return torch.cat([self.net(part.to(self.device)).cpu() for part in places.split(chunk)]).view(height, width, 3)


pinn = NavierStokesPINN()
pinn.train_adam()
pinn.train_lbfgs()
print([tuple(pinn.predict(time).shape) for time in (0.0, 5.0, 10.0)])
