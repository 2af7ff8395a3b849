# pytorch/rl#1153; h100:6GiB
"""Proximal policy optimisation of a walking robot: rollouts of many copies of it, advantages of all steps, and some epochs of updates."""

import torch
from torch import nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self, observations=76, actions=21, width=512):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(observations, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, actions))
        self.critic = nn.Sequential(nn.Linear(observations, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.zeros(actions))

    def distribution(self, observations):
        return torch.distributions.Normal(self.actor(observations), self.log_std.exp(), validate_args=False)

    def value(self, observations):
        return self.critic(observations).squeeze(-1)


class Walkers:
    """Simulation of the robots; an episode of a robot ends when it falls."""

    def __init__(self, count, observations=76, actions=21):
        self.state = torch.randn(count, observations, device="cuda")
        self.push = torch.randn(actions, observations, device="cuda") * 0.1

    def step(self, actions):
        self.state = torch.tanh(self.state + actions @ self.push)
        return self.state, self.state[:, 0] - 0.01 * actions.square().sum(1), torch.rand(len(actions), device="cuda") < 0.01


def generalized_advantage(reward, done, value, next_value, gamma=0.99, lmbda=0.95):
    not_done = 1.0 - done.float()
    delta = reward + gamma * next_value * not_done - value
    decay = gamma * lmbda * F.pad(not_done[:, :-1], (1, 0), value=1.0)
    steps = torch.arange(reward.shape[1], device=reward.device)
    factors = torch.where(steps[None, :] > steps[:, None], decay[:, None, :], 1.0)
    weights = factors.cumprod(-1).triu()
    return (weights @ delta[..., None]).squeeze(-1)


@torch.no_grad()
def collect(walkers, model, steps):
    observations, actions, rewards, dones = [walkers.state], [], [], []
    for _ in range(steps):
        actions.append(model.distribution(observations[-1]).sample())
        observation, reward, done = walkers.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        dones.append(done)
    observations, actions = torch.stack(observations, 1), torch.stack(actions, 1)
    log_probs = model.distribution(observations[:, :-1]).log_prob(actions).sum(-1)
    value = model.value(observations)
    advantage = generalized_advantage(torch.stack(rewards, 1), torch.stack(dones, 1), value[:, :-1], value[:, 1:])
    return [part.flatten(0, 1) for part in (observations[:, :-1], actions, log_probs, advantage, advantage + value[:, :-1])]


walkers, model = Walkers(640), ActorCritic().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for iteration in range(2):
    batch = collect(walkers, model, steps=1024)
    for epoch in range(2):
        for chosen in torch.randperm(len(batch[0]), device="cuda").split(65_536):
            observations, actions, old, advantage, returns = (part[chosen] for part in batch)
            ratio = (model.distribution(observations).log_prob(actions).sum(-1) - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = policy_loss + 0.5 * F.mse_loss(model.value(observations), returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(iteration, loss.item())
