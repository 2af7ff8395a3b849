# openai/phasic-policy-gradient#2; h100:4GiB
"""Learns to play generated cave levels with the phasic policy gradient: phases of PPO, then one of distilling the values."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, kl_divergence

ACTIONS = 15


class Caves:
    """Many caves at once, played by their pictures of 64 x 64."""

    def __init__(self, num_envs, levels=16):
        self.num_envs, self.steps = num_envs, 0
        self.pictures = torch.randint(0, 256, (levels, 3, 64, 64), dtype=torch.uint8)

    def step(self, actions=None):
        self.steps += 1
        return self.pictures[(torch.arange(self.num_envs) + self.steps) % len(self.pictures)], torch.rand(self.num_envs)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class PhasicModel(nn.Module):
    def __init__(self, channels=(16, 32, 32), width=256):
        super().__init__()
        stages, inputs = [], 3
        for outputs in channels:
            stages += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(outputs), Residual(outputs)]
            inputs = outputs
        self.encoder = nn.Sequential(*stages, nn.ReLU(), nn.Flatten(), nn.Linear(inputs * 64, width), nn.ReLU())
        self.policy, self.value, self.auxiliary = nn.Linear(width, ACTIONS), nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, observations):
        x = self.encoder(observations.float() / 255)
        return Categorical(logits=self.policy(x), validate_args=False), self.value(x.detach()).squeeze(-1), self.auxiliary(x).squeeze(-1)


@torch.no_grad()
def roll_out(model, caves, nstep, gamma=0.999, lam=0.95):
    observations = torch.zeros(nstep + 1, caves.num_envs, 3, 64, 64, dtype=torch.uint8)
    actions, rewards = torch.zeros(nstep, caves.num_envs, dtype=torch.long), torch.zeros(nstep, caves.num_envs)
    values, log_probs = torch.zeros(nstep + 1, caves.num_envs), torch.zeros(nstep, caves.num_envs)
    observations[0], _ = caves.step()
    for t in range(nstep):
        policy, value, _ = model(observations[t].cuda())
        action = policy.sample()
        actions[t], values[t], log_probs[t] = action.cpu(), value.cpu(), policy.log_prob(action).cpu()
        observations[t + 1], rewards[t] = caves.step(actions[t])
    values[nstep] = model(observations[nstep].cuda())[1].cpu()
    advantages, last = torch.zeros(nstep, caves.num_envs), 0
    for t in reversed(range(nstep)):
        last = advantages[t] = rewards[t] + gamma * values[t + 1] - values[t] + gamma * lam * last
    segment = {"ob": observations[:-1], "ac": actions, "logp": log_probs, "adv": advantages, "return": advantages + values[:-1]}
    return {name: column.flatten(0, 1) for name, column in segment.items()}


def minibatches(data, count):
    for indices in torch.randperm(len(data["ob"])).chunk(count):
        yield {name: column[indices].cuda() for name, column in data.items()}


def ppo_phase(model, optimizer, segment, nminibatch=8, clip=0.2):
    for mb in minibatches(segment, nminibatch):
        policy, value, _ = model(mb["ob"])
        ratio = (policy.log_prob(mb["ac"]) - mb["logp"]).exp()
        gain = torch.minimum(ratio * mb["adv"], ratio.clamp(1 - clip, 1 + clip) * mb["adv"])
        loss = (value - mb["return"]).square().mean() / 2 - gain.mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def aux_phase(model, optimizer, buffer, n_aux_epochs, mbs_per_segment, beta_clone=1.0):
    data = {name: torch.cat([segment[name] for segment in buffer]) for name in ("ob", "return")}
    with torch.no_grad():
        data["logits"] = torch.cat([model(part.cuda())[0].logits.cpu() for part in data["ob"].split(512)])
    for _ in range(n_aux_epochs):
        for mb in minibatches(data, mbs_per_segment):
            policy, value, auxiliary = model(mb["ob"])
            loss = sum((v - mb["return"]).square().mean() / 2 for v in (value, auxiliary))
            loss = loss + beta_clone * kl_divergence(Categorical(logits=mb["logits"], validate_args=False), policy).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("auxiliary phase", loss.item())


def train(n_pi=8, num_envs=128, nstep=32, n_aux_epochs=1, mbs_per_segment=4):
    caves, model = Caves(num_envs), PhasicModel().cuda()
    optimizer, aux_optimizer = (torch.optim.Adam(model.parameters(), lr=5e-4) for _ in range(2))
    buffer = []
    for _ in range(n_pi):
        segment = roll_out(model, caves, nstep)
        ppo_phase(model, optimizer, segment)
        buffer.append(segment)
    aux_phase(model, aux_optimizer, buffer, n_aux_epochs, mbs_per_segment)


train()
