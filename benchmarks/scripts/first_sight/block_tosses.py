# DAIRLab/dair_pll#20; h100:4GiB
"""Learns how tossed blocks move from steps of recorded trajectories, and compares whole predicted trajectories at the end."""

import torch
from torch import nn


class Dynamics(nn.Module):
    """The residual of a step of velocity, as a network of the state."""

    def __init__(self, positions=7, velocities=6, width=512):
        super().__init__()
        self.positions, self.velocities = positions, velocities
        self.net = nn.Sequential(
            nn.Linear(positions + velocities, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, velocities)
        )

    def step(self, x, dt=0.0068):
        q, v = x[..., : self.positions], x[..., self.positions :]
        v = v + dt * self.net(x)
        turn = torch.cat([v, torch.zeros_like(v[..., :1])], -1)
        return torch.cat([q + dt * turn, v], -1)

    def simulate(self, x_0, steps):
        states = [x_0]
        for _ in range(steps):
            states.append(self.step(states[-1]))
        return torch.stack(states, 1)


class Experiment:
    def __init__(self, trajectories=24576, length=40):
        self.system = Dynamics().cuda()
        self.trajectories = torch.zeros(trajectories, length, 13).normal_(std=0.1)

    def train(self, steps=20, batch=4096):
        optimizer = torch.optim.Adam(self.system.parameters(), lr=1e-3)
        for i in range(steps):
            time = torch.randint(0, self.trajectories.shape[1] - 1, (batch,))
            some = torch.randint(0, len(self.trajectories), (batch,))
            before, after = self.trajectories[some, time].cuda(), self.trajectories[some, time + 1].cuda()
            loss = (self.system.step(before) - after).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    def trajectory_predict(self, trajectories, batch=4096):
        predictions, targets = [], []
        for target in trajectories.split(batch):
            target = target.cuda()
            predictions.append(self.system.simulate(target[:, 0], target.shape[1] - 1))
            targets.append(target)
        return predictions, targets

    def evaluate(self, name, trajectories):
        predictions, targets = self.trajectory_predict(trajectories)
        errors = [(p - t).square().sum(-1).mean(0) for p, t in zip(predictions, targets)]
        error = torch.stack(errors).mean(0)
        return {f"{name}_mean": error.mean().item(), f"{name}_last": error[-1].item()}


experiment = Experiment()
for epoch in range(3):
    print(epoch, experiment.train())
print(experiment.evaluate("valid", experiment.trajectories[:4096, :10]))
print(experiment.evaluate("train", experiment.trajectories))
