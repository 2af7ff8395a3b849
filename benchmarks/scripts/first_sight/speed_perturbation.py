# pytorch/audio#2414; h100:8GiB
"""A speech encoder is trained on waveforms that are played a little faster or slower in each step."""

import math
import random

import torch
from torch import nn
import torch.nn.functional as F


def sinc_kernel(source, target, lowpass_width=6, rolloff=0.99, device="cpu"):
    """Filters of a windowed sinc, one for each place of an output sample between input samples."""
    base = min(source, target) * rolloff
    width = math.ceil(lowpass_width * source / base)
    places = torch.arange(-width, width + source, dtype=torch.float64, device=device)[None, None] / source
    t = torch.arange(0, -target, -1, dtype=torch.float64, device=device)[:, None, None] / target + places
    t = (t * base).clamp_(-lowpass_width, lowpass_width)
    window = torch.cos(t * math.pi / lowpass_width / 2) ** 2
    t *= math.pi
    kernel = torch.where(t == 0, 1.0, t.sin() / t) * window * (base / source)
    return kernel.float(), width


def resample(waveform, source, target):
    divisor = math.gcd(source, target)
    source, target = source // divisor, target // divisor
    if source == target:
        return waveform
    kernel, width = sinc_kernel(source, target, device=waveform.device)
    padded = F.pad(waveform, (width, width + source))
    resampled = F.conv1d(padded[:, None], kernel, stride=source).transpose(1, 2).flatten(1)
    return resampled[:, : math.ceil(target * waveform.shape[1] / source)]


class SpeedPerturbation(nn.Module):
    def __init__(self, rate, slowest=0.9, fastest=1.1):
        super().__init__()
        self.rate, self.slowest, self.fastest = rate, slowest, fastest

    def forward(self, waveform):
        speed = random.uniform(self.slowest, self.fastest)
        return resample(waveform, int(self.rate * speed), self.rate)


class Encoder(nn.Module):
    def __init__(self, width=512, layers=6, phones=72):
        super().__init__()
        sizes = [(1, 10, 5)] + [(width, 3, 2)] * 4 + [(width, 2, 2)] * 2
        self.convs = nn.ModuleList([nn.Conv1d(inlet, width, kernel, stride) for inlet, kernel, stride in sizes])
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, phones)

    def forward(self, waveform):
        x = waveform[:, None]
        for conv in self.convs:
            x = F.gelu(conv(x))
        return self.head(self.layers(x.transpose(1, 2)))


random.seed(7)
perturb, model = SpeedPerturbation(rate=24_000), Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
for step in range(5):
    waveform = torch.randn(8, 4 * 24_000).cuda()
    phones = model(perturb(waveform))
    targets = torch.randint(0, 72, phones.shape[:2]).cuda()
    loss = F.cross_entropy(phones.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
