# control; h100:5GiB
"""Turns codes of generated songs into stereo waveforms with the decoder of a neural codec."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Songs(Dataset):
    def __init__(self, songs, seconds, rate=50, codebooks=4, entries=2048):
        self.songs, self.frames, self.codebooks, self.entries = songs, seconds * rate, codebooks, entries

    def __len__(self):
        return self.songs

    def __getitem__(self, i):
        return torch.randint(self.entries, (self.codebooks, self.frames))


class ResidualUnit(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ELU(), nn.Conv1d(width, width // 2, 3, dilation=dilation, padding=dilation),
            nn.ELU(), nn.Conv1d(width // 2, width, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


class DecoderBlock(nn.Sequential):
    def __init__(self, before, after, stride):
        super().__init__(
            nn.ELU(), nn.ConvTranspose1d(before, after, 2 * stride, stride, stride // 2 + stride % 2, output_padding=stride % 2),
            ResidualUnit(after, 1), ResidualUnit(after, 3),
        )


class Recurrent(nn.Module):
    def __init__(self, width, layers=2):
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x):
        return x + self.lstm(x.transpose(1, 2))[0].transpose(1, 2)


class Codec(nn.Module):
    def __init__(self, codebooks=4, entries=2048, dimension=128, width=32, strides=(8, 5, 4, 4), channels=2):
        super().__init__()
        self.codebooks = nn.ModuleList(nn.Embedding(entries, dimension) for _ in range(codebooks))
        widest = width * 2 ** len(strides)
        layers = [nn.Conv1d(dimension, widest, 7, padding=3), Recurrent(widest)]
        for level, stride in enumerate(strides):
            layers.append(DecoderBlock(widest >> level, widest >> level + 1, stride))
        self.decoder = nn.Sequential(*layers, nn.ELU(), nn.Conv1d(width, channels, 7, padding=3))

    def decode(self, codes):
        x = sum(embed(codes[:, level]) for level, embed in enumerate(self.codebooks))
        return self.decoder(x.transpose(1, 2)).tanh()


class Loudness:
    """Peaks and root mean squares of waveforms, summed up on the host."""

    def __init__(self):
        self.peak, self.square, self.count = 0.0, 0.0, 0

    def update(self, waveform):
        self.peak = max(self.peak, waveform.abs().max().item())
        self.square += waveform.double().square().mean((1, 2)).sum().item()
        self.count += len(waveform)

    def __str__(self):
        return f"{self.count} songs, peak {self.peak:.2f}, level {(self.square / max(self.count, 1)) ** 0.5:.3f}"


@torch.inference_mode()
def render(codec, loader):
    loudness = Loudness()
    for codes in loader:
        waveform = codec.decode(codes.cuda())
        loudness.update(waveform.cpu())
        print(loudness)
    return loudness


if __name__ == "__main__":
    codec = Codec().cuda().eval()
    render(codec, DataLoader(Songs(24, seconds=60), batch_size=12))
