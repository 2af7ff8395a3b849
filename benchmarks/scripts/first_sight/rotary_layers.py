# meta-pytorch/torchtune#1527; h100:3GiB
"""A language model with rotary positions for long texts, trained on short ones; its layers are made from one."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class RotaryPositionalEmbeddings(nn.Module):
    def __init__(self, dim, max_seq_len, base=500_000):
        super().__init__()
        theta = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
        angles = torch.outer(torch.arange(max_seq_len).float(), theta)
        self.register_buffer("cache", torch.stack([angles.cos(), angles.sin()], -1), persistent=False)

    def forward(self, x):
        pair = x.float().reshape(*x.shape[:-1], -1, 2)
        cos, sin = self.cache[: x.shape[1]].view(1, x.shape[1], 1, -1, 2).unbind(-1)
        turned = torch.stack([pair[..., 0] * cos - pair[..., 1] * sin, pair[..., 1] * cos + pair[..., 0] * sin], -1)
        return turned.flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, width, heads, max_seq_len):
        super().__init__()
        self.heads, self.pos = heads, RotaryPositionalEmbeddings(width // heads, max_seq_len)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width, bias=False), nn.SiLU(), nn.Linear(3 * width, width, bias=False))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).unbind(2)
        q, k, v = self.pos(q).transpose(1, 2), self.pos(k).transpose(1, 2), v.transpose(1, 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TransformerDecoder(nn.Module):
    def __init__(self, layer, num_layers, width, words=16_000):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = TransformerDecoder(Layer(1024, 8, max_seq_len=131_072), 28, 1024).cuda()
for parameter in model.parameters():
    parameter.data = parameter.data.to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
for step in range(4):
    tokens = torch.randint(0, 16_000, (1, 257), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
