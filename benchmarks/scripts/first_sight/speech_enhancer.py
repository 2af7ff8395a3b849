# echocatzh/MTFAA-Net#4; h100:6GiB
"""Noise is taken away from speech of 48 kHz by a network with attention along frequencies and along time."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class NoisySpeech(Dataset):
    def __init__(self, seconds, rate=48_000):
        self.samples = seconds * rate

    def __len__(self):
        return 8

    def __getitem__(self, index):
        clean = torch.rand(self.samples) * 2 - 1
        return clean + 0.1 * torch.randn(self.samples), clean


class TFCM(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, 1, (1, dilation), (1, dilation), channels), nn.BatchNorm2d(channels), nn.PReLU(channels),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


class ASA(nn.Module):
    def __init__(self, channels, inner=16):
        super().__init__()
        self.inner = inner
        self.f_qkv, self.t_qk = nn.Conv2d(channels, 3 * inner, 1), nn.Conv2d(channels, 2 * inner, 1)
        self.out = nn.Sequential(nn.Conv2d(inner, channels, 1), nn.BatchNorm2d(channels), nn.PReLU(channels))

    def forward(self, x):
        qf, kf, v = self.f_qkv(x).chunk(3, 1)
        f_score = torch.einsum("bcft,bcyt->btfy", qf, kf) / self.inner**0.5
        f_out = torch.einsum("btfy,bcyt->bcft", f_score.softmax(-1), v)
        qt, kt = self.t_qk(x).chunk(2, 1)
        t_score = torch.einsum("bcft,bcfy->bfty", qt, kt) / self.inner**0.5
        return x + self.out(torch.einsum("bfty,bcfy->bcft", t_score.softmax(-1), f_out))


class MTFAANet(nn.Module):
    def __init__(self, channels=48, bands=64, window=1536, hop=768):
        super().__init__()
        self.window, self.hop = window, hop
        self.register_buffer("hann", torch.hann_window(window))
        self.merge, self.split = nn.Linear(window // 2 + 1, bands), nn.Linear(bands, window // 2 + 1)
        self.inlet = nn.Conv2d(2, channels, 3, padding=1)
        self.body = nn.Sequential(*[nn.Sequential(TFCM(channels, 1), TFCM(channels, 2), ASA(channels)) for _ in range(3)])
        self.mask = nn.Conv2d(channels, 2, 1)

    def forward(self, noisy):
        spectrum = torch.stft(noisy, self.window, self.hop, window=self.hann, return_complex=True)
        x = torch.stack([spectrum.real, spectrum.imag], 1)
        x = self.merge(x.transpose(2, 3)).transpose(2, 3)
        mask = self.split(self.mask(self.body(self.inlet(x))).transpose(2, 3)).transpose(2, 3).tanh()
        return torch.istft(spectrum * torch.complex(mask[:, 0], mask[:, 1]), self.window, self.hop, window=self.hann, length=noisy.shape[1])


def to_segments(speech, seconds, rate=48_000):
    return speech.view(-1, seconds * rate)


model = MTFAANet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
for step, (noisy, clean) in enumerate(DataLoader(NoisySpeech(30), batch_size=1)):
    noisy, clean = to_segments(noisy, 30).cuda(), to_segments(clean, 30).cuda()
    loss = F.l1_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
