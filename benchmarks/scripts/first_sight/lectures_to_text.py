# NVIDIA-NeMo/Speech#5190; h100:4GiB
"""Transcribes recordings of lectures with a Conformer-CTC model, one file after the other."""

import math

import torch
from torch import nn
from torch.nn import functional as F

SAMPLE_RATE, HOP = 16000, 160
RECORDINGS = {"question.wav": 20, "summary.wav": 100, "lecture.wav": 780}


class ConvSubsampling(nn.Module):
    def __init__(self, mels, width, channels=64):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 2, 1, groups=channels), nn.ReLU())
        self.out = nn.Linear(channels * mels // 4, width)

    def forward(self, x):
        return self.out(self.conv(x[:, None]).transpose(1, 2).flatten(2))


class RelPositionAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.position, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.bias_u, self.bias_v = nn.Parameter(torch.zeros(heads, 1, width // heads)), nn.Parameter(torch.zeros(heads, 1, width // heads))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def rel_shift(self, x):
        batch, heads, queries, positions = x.shape
        x = F.pad(x, (1, 0)).view(batch, heads, -1, queries)
        return x[:, :, 1:].view(batch, heads, queries, positions)

    def forward(self, x, positions):
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, -1))
        p = self.split(self.position(positions))
        content = (q + self.bias_u) @ k.transpose(-1, -2)
        relative = self.rel_shift((q + self.bias_v) @ p.transpose(-1, -2))[..., : content.shape[-1]]
        scores = (content + relative) / math.sqrt(q.shape[-1])
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ConformerLayer(nn.Module):
    def __init__(self, width, heads, kernel=31):
        super().__init__()
        feed = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.feed1, self.feed2, self.norm1, self.norm2, self.norm3 = feed(), feed(), nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelPositionAttention(width, heads)
        self.conv = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width), nn.SiLU(), nn.Conv1d(width, width, 1))

    def forward(self, x, positions):
        x = x + self.feed1(x) / 2
        x = x + self.attention(self.norm1(x), positions)
        x = x + self.conv(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return self.norm3(x + self.feed2(x) / 2)


class ConformerCTC(nn.Module):
    def __init__(self, mels=80, width=176, heads=4, layers=8, vocabulary=1024):
        super().__init__()
        self.width = width
        self.subsampling = ConvSubsampling(mels, width)
        self.layers = nn.ModuleList([ConformerLayer(width, heads) for _ in range(layers)])
        self.decoder = nn.Linear(width, vocabulary + 1)

    def forward(self, mel):
        x = self.subsampling(mel)
        offsets = torch.arange(x.shape[1] - 1, -x.shape[1], -1.0, device=x.device)[:, None]
        angles = offsets * torch.exp(torch.arange(0, self.width, 2, device=x.device) * -(math.log(10000.0) / self.width))
        positions = torch.cat([angles.sin(), angles.cos()], -1)[None]
        for layer in self.layers:
            x = layer(x, positions)
        return self.decoder(x).log_softmax(-1)


def log_mel(seconds, mels=80):
    return torch.randn(1, seconds * SAMPLE_RATE // HOP, mels)


@torch.no_grad()
def transcribe(model, mel):
    return model(mel.cuda()).argmax(-1)[0].cpu()


model = ConformerCTC().cuda().eval()
for name, seconds in RECORDINGS.items():
    tokens = transcribe(model, log_mel(seconds))
    print(f"{name}: {seconds} s, {len(tokens)} frames")
