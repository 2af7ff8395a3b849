# NVIDIA-NeMo/RL#1138; h100:5GiB
"""A policy in bfloat16 is updated with the advantages of sampled answers; the norm of its gradients is limited."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width=2048, heads=16):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Policy(nn.Module):
    def __init__(self, words=32_000, width=2048, layers=12):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def get_grad_norm(parameters, norm_type=2.0, dtype=torch.float32):
    grads_for_norm = [p.grad.detach().to(dtype) for p in parameters if p.grad is not None]
    total_norm = torch.tensor(0.0, dtype=dtype, device="cuda")
    for grad in grads_for_norm:
        total_norm += torch.pow(torch.norm(grad, norm_type), norm_type)
    return total_norm ** (1.0 / norm_type)


def clip_grads(parameters, max_norm, total_norm):
    scale = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        if p.grad is not None:
            p.grad.mul_(scale)


policy = Policy().cuda().bfloat16()
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3, foreach=False)
for step in range(4):
    answers = torch.randint(0, 32_000, (2, 257), device="cuda")
    advantages = torch.randn(2, 1, device="cuda")
    logprobs = -F.cross_entropy(policy(answers[:, :-1]).flatten(0, 1), answers[:, 1:].flatten(), reduction="none").view(2, -1)
    loss = -(advantages * (logprobs - logprobs.detach()).exp()).mean()
    loss.backward()
    grad_norm = get_grad_norm(list(policy.parameters()))
    clip_grads(policy.parameters(), 1.0, grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), grad_norm.item())
