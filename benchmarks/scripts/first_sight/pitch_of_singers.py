# chomeyama/SiFiGAN#7; h100:4GiB
"""Trains a vocoder whose convolutions reach as far back and ahead as the pitch of the singer tells them to."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOP, RATE = 128, 24000


class Phrases(Dataset):
    def __init__(self, phrases=48, frames=256, mels=80):
        self.mels = torch.randn(phrases, mels, frames)
        self.pitch = 110 * 2 ** (2 * torch.rand(phrases, 1, 1)) * (1 + 0.02 * torch.sin(torch.linspace(0, 12, frames)))
        self.waves = torch.randn(phrases, 1, frames * HOP).clamp(-1, 1)

    def __len__(self):
        return len(self.mels)

    def __getitem__(self, i):
        return self.mels[i], self.pitch[i], self.waves[i]


def dilated_factors(pitch, rate, dense_factor=4):
    return rate / (pitch * dense_factor)


def pd_indexing(x, d, dilation):
    """Past and future samples of (B, C, T) features at the distances (B, 1, T) that follow the pitch."""
    B, C, T = x.size()
    batch_index = torch.arange(0, B, device=x.device).reshape(B, 1, 1)
    ch_index = torch.arange(0, C, device=x.device).reshape(1, C, 1)
    dilations = torch.clamp((d * dilation).long(), min=1)

    idx_base = torch.arange(0, T, device=x.device).reshape(1, 1, T)
    idxP = (idx_base - dilations).abs() % T
    idxP = (batch_index, ch_index, idxP)

    idxF = idx_base + dilations
    idxF = torch.where(idxF >= T, T - 1 - idxF % T, idxF)

    return x[idxP], x[idxF]


class AdaptiveBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.past, self.current, self.future = (nn.Conv1d(channels, channels, 1) for _ in range(3))
        self.out = nn.Conv1d(channels, channels, 7, padding=3)

    def forward(self, x, d):
        h = F.leaky_relu(x, 0.1)
        past, future = pd_indexing(h, d, self.dilation)
        h = self.past(past) + self.current(h) + self.future(future)
        return x + self.out(F.leaky_relu(h, 0.1))


class Generator(nn.Module):
    def __init__(self, mels=80, channels=192, rates=(16, 8)):
        super().__init__()
        self.inputs = nn.Conv1d(mels, channels, 7, padding=3)
        self.ups, self.blocks, self.rates = nn.ModuleList(), nn.ModuleList(), rates
        for rate in rates:
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2))
            channels //= 2
            self.blocks.append(nn.ModuleList(AdaptiveBlock(channels, dilation) for dilation in (1, 4)))
        self.outputs = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, mels, pitch):
        x, rate = self.inputs(mels), RATE // HOP
        for up, blocks, factor in zip(self.ups, self.blocks, self.rates):
            x, pitch, rate = up(F.leaky_relu(x, 0.1)), pitch.repeat_interleave(factor, -1), rate * factor
            d = dilated_factors(pitch, rate)
            x = sum(block(x, d) for block in blocks) / len(blocks)
        return torch.tanh(self.outputs(F.leaky_relu(x, 0.1)))


def spectral_loss(fake, real, sizes=(512, 1024, 2048)):
    loss = 0
    for size in sizes:
        frames = [wave.squeeze(1).unfold(-1, size, size // 4) * torch.hann_window(size, device=wave.device) for wave in (fake, real)]
        fake_size, real_size = (torch.fft.rfft(f).abs().clamp(min=1e-5) / math.sqrt(size) for f in frames)
        loss = loss + F.l1_loss(fake_size.log(), real_size.log())
    return loss


def main():
    generator = Generator().cuda()
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.8, 0.99))
    for epoch in range(2):
        for mels, pitch, waves in DataLoader(Phrases(), batch_size=16, shuffle=True):
            mels, pitch, waves = mels.cuda(), pitch.cuda(), waves.cuda()
            loss = spectral_loss(generator(mels, pitch), waves)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())


main()
