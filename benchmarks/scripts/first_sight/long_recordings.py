# NVIDIA-NeMo/Speech#15751; h100:6GiB
"""Recordings of some minutes are written down by an encoder with relative positions; its frames are decoded greedily."""

import torch
from torch import nn
import torch.nn.functional as F


class RelPosAttention(nn.Module):
    """Attention with the positions of Transformer-XL: what a frame seeks depends on how far away it is."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.qkv, self.position, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(heads, 1, self.head_width)) for _ in range(2))

    @staticmethod
    def shift(scores):
        batch, heads, frames, offsets = scores.shape
        shifted = F.pad(scores, (1, 0)).view(batch, heads, offsets + 1, frames)[:, :, 1:]
        return shifted.reshape(batch, heads, frames, offsets)[..., :frames]

    def forward(self, x, offsets):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = self.position(offsets).view(-1, self.heads, self.head_width).transpose(0, 1)
        self.rel_pos_bias = self.shift((q + self.position_bias) @ p.transpose(1, 2)) * self.head_width**-0.5
        y = F.scaled_dot_product_attention(q + self.content_bias, k, v, attn_mask=self.rel_pos_bias)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), RelPosAttention(width, heads)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x, offsets):
        x = x + self.attention(self.norm1(x), offsets)
        return x + self.feed_forward(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, bands=80, width=512, layers=18, heads=8, symbols=1024):
        super().__init__()
        sizes = [(1, 64), (64, 64), (64, 64)]
        self.reduce = nn.Sequential(*[nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.ReLU()) for i, o in sizes])
        self.project, self.width = nn.Linear(64 * bands // 8, width), width
        self.layers, self.head = nn.ModuleList([Layer(width, heads) for _ in range(layers)]), nn.Linear(width, symbols + 1)

    def offsets(self, frames, like):
        places = torch.arange(frames - 1, -frames, -1, device=like.device, dtype=torch.float32)
        angles = places[:, None] / 10_000 ** (torch.arange(0, self.width, 2, device=like.device) / self.width)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)

    def forward(self, spectrograms):
        x = self.reduce(spectrograms[:, None]).transpose(1, 2).flatten(2)
        x = self.project(x)
        offsets = self.offsets(x.shape[1], x)
        for layer in self.layers:
            x = layer(x, offsets)
        return self.head(x)


model = Encoder().to(device="cuda", dtype=torch.bfloat16).eval()
with torch.inference_mode():
    for recording in range(4):
        spectrograms = torch.randn(4, 16_384, 80, dtype=torch.bfloat16, device="cuda")
        symbols = model(spectrograms).argmax(-1).cpu()
        print(recording, symbols.shape)
