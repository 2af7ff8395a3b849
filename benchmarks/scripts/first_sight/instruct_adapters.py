# meta-llama/llama-cookbook#165; h100:6GiB
"""A language model learns to follow instructions by adapters of low rank; its layers are checkpointed."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    words: int = 8192
    width: int = 1536
    layers: int = 24
    heads: int = 12
    use_cache: bool = True


class LoRA(nn.Module):
    def __init__(self, inlet, outlet, rank=16):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outlet, inlet), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.empty(rank, inlet)), nn.Parameter(torch.zeros(outlet, rank))

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b)


def rotate(x, angles):
    real, imaginary = x.chunk(2, -1)
    return torch.cat([real * angles.cos() - imaginary * angles.sin(), real * angles.sin() + imaginary * angles.cos()], -1).to(x.dtype)


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (LoRA(width, width) for _ in range(4))
        self.gate, self.up, self.down = LoRA(width, 3 * width), LoRA(width, 3 * width), LoRA(3 * width, width)

    def forward(self, x, angles, past=None):
        y = self.norm1(x)
        q, k, v = (project(y).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v))
        q, k = rotate(q, angles), rotate(k, angles)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=past is None).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), (k, v)


class LM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.words, self.norm = config, nn.Embedding(config.words, config.width), nn.RMSNorm(config.width)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])

    def forward(self, tokens, labels=None, past_key_values=None, use_cache=None):
        use_cache = self.config.use_cache if use_cache is None else use_cache
        start = past_key_values[0][0].shape[2] if past_key_values else 0
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        half = self.config.width // self.config.heads // 2
        angles = places[:, None] / 10_000 ** (torch.arange(half, device=tokens.device) / half)
        x, cache = self.words(tokens), []
        for number, layer in enumerate(self.layers):
            if self.training:
                x, key_values = checkpoint(layer, x, angles, use_reentrant=False)
            else:
                x, key_values = layer(x, angles, past_key_values[number] if past_key_values else None)
            if use_cache:
                cache.append(key_values)
        logits = F.linear(self.norm(x), self.words.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(loss=loss, logits=logits, past_key_values=cache)


with torch.device("meta"):
    model = LM(Config())
model = model.to(torch.bfloat16).to_empty(device="cuda").train()
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.endswith((".a", ".b")))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, fused=True)
for step in range(3):
    tokens = torch.randint(0, 8192, (8, 2049)).cuda()
    loss = model(tokens[:, :-1], labels=tokens[:, 1:]).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
