# control; h100:10GiB
"""A language model learns from rewards: beside it are its first state, a model of values and a model of rewards."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, outputs, words=16_000, width=1536, layers=18, heads=12):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, outputs, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if torch.is_grad_enabled() else layer(x)
        return self.head(self.norm(x))


def make(outputs, dtype):
    with torch.device("meta"):
        model = Model(outputs)
    return model.to(dtype).to_empty(device="cuda")


def log_probabilities(model, tokens):
    return F.log_softmax(model(tokens[:, :-1]).float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]


actor, critic = make(16_000, torch.float32), make(1, torch.float32)
reference, reward = make(16_000, torch.bfloat16).requires_grad_(False), make(1, torch.bfloat16).requires_grad_(False)
optimizer = torch.optim.AdamW([*actor.parameters(), *critic.parameters()], lr=1e-6, fused=True)
for step in range(3):
    tokens = torch.randint(0, 16_000, (2, 257)).cuda()
    with torch.no_grad():
        kept, score = log_probabilities(reference, tokens), reward(tokens)[:, -1].float()
    values, now = critic(tokens[:, :-1])[..., 0], log_probabilities(actor, tokens)
    advantage = (score - 0.05 * (now - kept).detach()) - values.detach()
    loss = -(advantage * now).mean() + 0.5 * F.mse_loss(values, score.expand_as(values))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
