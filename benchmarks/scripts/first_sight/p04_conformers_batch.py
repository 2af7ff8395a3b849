# control; h100:6GiB
"""Trains an equivariant diffusion model of molecules, in which every atom exchanges messages with every other."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Drugs(Dataset):
    def __init__(self, molecules=2048, atoms=44, types=16):
        self.molecules, self.atoms, self.types = molecules, atoms, types

    def __len__(self):
        return self.molecules

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(self.atoms, 3, generator=generator), torch.randint(0, self.types, (self.atoms,), generator=generator)


class EquivariantLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.attention = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.coordinate = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))

    def forward(self, h, x):
        atoms = h.shape[1]
        difference = x[:, :, None] - x[:, None]
        distance = difference.square().sum(-1, keepdim=True)
        pairs = torch.cat([h[:, :, None].expand(-1, -1, atoms, -1), h[:, None].expand(-1, atoms, -1, -1), distance], -1)
        message = self.edge(pairs)
        message = message * self.attention(message)
        x = x + (difference / (distance.sqrt() + 1) * torch.tanh(self.coordinate(message))).mean(2)
        return h + self.node(torch.cat([h, message.sum(2) / 10], -1)), x


class EGNN(nn.Module):
    def __init__(self, types=16, width=192, layers=4):
        super().__init__()
        self.embedding, self.out = nn.Linear(types + 1, width), nn.Linear(width, types)
        self.layers = nn.ModuleList([EquivariantLayer(width) for _ in range(layers)])

    def forward(self, h, x, t):
        start = x
        h = self.embedding(torch.cat([h, t.expand(-1, h.shape[1], 1)], -1))
        for layer in self.layers:
            h, x = layer(h, x)
        return self.out(h), x - start


class Diffusion(nn.Module):
    def __init__(self, network, steps=1000):
        super().__init__()
        self.network, self.steps = network, steps

    def forward(self, x, h):
        t = torch.randint(1, self.steps + 1, (len(x), 1, 1), device=x.device) / self.steps
        alpha, sigma = torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)
        noise_x, noise_h = torch.randn_like(x), torch.randn_like(h)
        noise_x = noise_x - noise_x.mean(1, keepdim=True)
        predicted_h, predicted_x = self.network(alpha * h + sigma * noise_h, alpha * x + sigma * noise_x, t)
        return (predicted_x - noise_x).square().mean() + (predicted_h - noise_h).square().mean()


def train(batch_size=128, iterations=16, types=16):
    model = Diffusion(EGNN(types)).cuda()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True, weight_decay=1e-12)
    loader = DataLoader(Drugs(types=types), batch_size=batch_size, shuffle=True, drop_last=True)
    for iteration, (positions, numbers) in zip(range(iterations), loader):
        positions = positions.cuda()
        loss = model(positions - positions.mean(1, keepdim=True), nn.functional.one_hot(numbers, types).float().cuda() / 4)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        average.update_parameters(model)
        print(f"iteration {iteration}: {loss.item():.3f}")


train()
