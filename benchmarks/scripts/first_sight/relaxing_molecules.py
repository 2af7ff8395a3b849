# TorchSim/torch-sim#590; h100:4GiB
"""Relaxes a library of molecules with a learned potential, several at a time, and swaps the finished ones for new ones."""

import random
from dataclasses import dataclass, fields

import torch
from torch import nn


@dataclass
class SimState:
    positions: torch.Tensor
    numbers: torch.Tensor
    velocities: torch.Tensor
    energy: torch.Tensor = None
    forces: torch.Tensor = None

    def __getitem__(self, index):
        return SimState(*(None if getattr(self, f.name) is None else getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self):
        return len(self.positions)

    @staticmethod
    def concatenate(states):
        return SimState(*(torch.cat([getattr(s, name) for s in states]) for name in ("positions", "numbers", "velocities")))


class Interaction(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, distances):
        atoms = h.shape[1]
        pairs = torch.cat([h[:, :, None].expand(-1, -1, atoms, -1), h[:, None].expand(-1, atoms, -1, -1), distances], -1)
        return h + self.node(torch.cat([h, self.edge(pairs).sum(2)], -1))


class Potential(nn.Module):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.interactions = nn.ModuleList([Interaction(width) for _ in range(layers)])
        self.energy, self.force = nn.Linear(width, 1), nn.Linear(width, 3)
        self.register_buffer("centers", torch.linspace(0, 6, 16))

    def forward(self, state):
        distances = (state.positions[:, :, None] - state.positions[:, None]).norm(dim=-1, keepdim=True)
        distances = torch.exp(-((distances - self.centers) ** 2))
        h = self.embedding(state.numbers)
        for interaction in self.interactions:
            h = interaction(h, distances)
        return {"energy": self.energy(h).sum((1, 2)), "forces": self.force(h).detach()}


def fire_step(model, state, dt=0.02, friction=0.9):
    state.velocities = friction * state.velocities + dt * state.forces
    state.positions = state.positions + dt * state.velocities
    results = model(state)
    state.energy, state.forces = results["energy"], results["forces"]
    return state


class InFlightAutoBatcher:
    def __init__(self, library, batch_size):
        self.waiting, self.batch_size = library, batch_size

    def take(self, count):
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return [SimState(x[None].cuda(), z[None].cuda(), torch.zeros_like(x)[None].cuda()) for x, z in taken]

    def next_batch(self, state, finished):
        completed = [state[i : i + 1] for i in finished]
        running = [state[i : i + 1] for i in range(len(state)) if i not in finished]
        running += self.take(self.batch_size - len(running))
        return (SimState.concatenate(running) if running else None), completed


def optimize(model, library, batch_size=32, steps_between_swaps=5):
    batcher = InFlightAutoBatcher(library, batch_size)
    state, all_completed = SimState.concatenate(batcher.take(batch_size)), []
    while state is not None:
        results = model(state)
        state.energy, state.forces = results["energy"], results["forces"]
        for _ in range(steps_between_swaps):
            state = fire_step(model, state)
        finished = set(random.sample(range(len(state)), min(len(state), 8)))
        state, completed = batcher.next_batch(state, finished)
        all_completed.extend(completed)
        print(f"{len(all_completed)} relaxed, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    return all_completed


random.seed(0)
model = Potential().cuda().eval()
library = [(torch.randn(48, 3), torch.randint(1, 18, (48,))) for _ in range(160)]
relaxed = optimize(model, library)
print(torch.cat([state.energy for state in relaxed]).mean().item())
