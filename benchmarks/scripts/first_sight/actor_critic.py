# PacktPublishing/Deep-Reinforcement-Learning-Hands-On#74; h100:8GiB
"""An actor and a critic learn to hold many simulated carts near the middle of their rails."""

import torch
from torch import nn
import torch.nn.functional as F


class Carts:
    """Carts on rails, which are simulated side by side on the GPU."""

    def __init__(self, carts):
        self.state = torch.zeros(carts, 4, device="cuda")

    def step(self, actions):
        force = (actions.float() - 1.0) * 0.1
        velocity = self.state[:, 2:] * 0.98 + torch.stack([force, -force], 1) + 0.01 * torch.randn_like(self.state[:, 2:])
        self.state = torch.cat([self.state[:, :2] + velocity * 0.1, velocity], 1)
        return self.state, 1.0 - self.state[:, :2].abs().sum(1)


class ActorCritic(nn.Module):
    def __init__(self, width=256, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, states):
        x = self.body(states)
        return self.policy(x), self.value(x)


@torch.no_grad()
def collect(env, model, steps, gamma):
    """States, actions and discounted returns of all carts over some steps."""
    states, actions, rewards = [], [], []
    for _ in range(steps):
        states.append(env.state)
        actions.append(torch.distributions.Categorical(logits=model(env.state)[0], validate_args=False).sample())
        rewards.append(env.step(actions[-1])[1])
    following, returns = model(env.state)[1].squeeze(-1), []
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.insert(0, following)
    return torch.cat(states), torch.cat(actions), torch.cat(returns)


def losses(model, states, actions, returns):
    logits, values = model(states)
    log_probs = F.log_softmax(logits, 1)
    value_loss = F.mse_loss(values.squeeze(-1), returns)
    advantages = returns - values.detach()
    chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
    policy_loss = -(advantages * chosen).mean()
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return policy_loss, value_loss, entropy


env, model = Carts(2048), ActorCritic().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
for update in range(4):
    policy_loss, value_loss, entropy = losses(model, *collect(env, model, steps=16, gamma=0.99))
    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(update, policy_loss.item(), value_loss.item())
