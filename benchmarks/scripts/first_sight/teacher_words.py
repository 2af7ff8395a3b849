# NVIDIA-NeMo/RL#2883; h100:8GiB
"""A small language model learns from the 64 likeliest words that a larger one names for each place of long texts."""

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
        return x + self.down(F.silu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, width, layers, heads, words=128_256):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def hidden(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        return self.norm(x)

    def forward(self, tokens):
        return F.linear(self.hidden(tokens), self.words.weight)


def vocab_topk(logits, k, chunk_size=None):
    logits = logits.to(torch.float32)
    chunk_size = chunk_size or logits.shape[1]
    values, indices = [], []
    for start in range(0, logits.shape[1], chunk_size):
        chunk = logits[:, start : start + chunk_size]
        top = chunk.topk(k, dim=-1)
        values.append(top.values - chunk.logsumexp(-1, keepdim=True))
        indices.append(top.indices)
    return torch.cat(values, 1), torch.cat(indices, 1)


def distillation_loss(student, tokens, values, indices, chunk_size):
    hidden, loss = student.hidden(tokens), 0.0
    for start in range(0, tokens.shape[1], chunk_size):
        part = slice(start, start + chunk_size)
        loss = loss + checkpoint(chunk_loss, hidden[:, part], student.words.weight, values[:, part], indices[:, part], use_reentrant=False)
    return loss / tokens.numel()


def chunk_loss(hidden, weight, values, indices):
    logits = F.linear(hidden, weight).float()
    log_probs = logits.gather(-1, indices) - logits.logsumexp(-1, keepdim=True)
    return (values.exp() * (values - log_probs)).sum()


with torch.device("meta"):
    teacher, student = LM(1536, 12, 12), LM(512, 6, 8)
teacher = teacher.bfloat16().to_empty(device="cuda").eval().requires_grad_(False)
student = student.bfloat16().to_empty(device="cuda").train()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
for step in range(3):
    tokens = torch.randint(0, 128_256, (1, 8192)).cuda()
    with torch.no_grad():
        values, indices = vocab_topk(teacher(tokens), 64, chunk_size=512)
    loss = distillation_loss(student, tokens, values, indices, 512)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
