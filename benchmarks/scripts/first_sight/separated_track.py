# facebookresearch/demucs#231; h100:3GiB
"""Separates a track of twelve minutes into four stems with a bag of four models."""

import torch
from torch import nn

RATE = 44100


class Demucs(nn.Module):
    def __init__(self, channels=2, width=48, sources=4):
        super().__init__()
        self.sources, self.channels = sources, channels
        self.encoder = nn.Sequential(nn.Conv1d(channels, width, 8, 4, 2), nn.ReLU(), nn.Conv1d(width, 2 * width, 8, 4, 2), nn.ReLU())
        self.lstm = nn.Conv1d(2 * width, 2 * width, 9, padding=4)
        self.decoder = nn.Sequential(nn.ConvTranspose1d(2 * width, width, 8, 4, 2), nn.ReLU(), nn.ConvTranspose1d(width, sources * channels, 8, 4, 2))

    def forward(self, mix):
        return self.decoder(self.lstm(self.encoder(mix))).unflatten(1, (self.sources, self.channels))


class BagOfModels(nn.Module):
    def __init__(self, models):
        super().__init__()
        self.models = nn.ModuleList(models)


def apply_model(model, mix, segment=15 * RATE // 16 * 16, overlap=0.25):
    if isinstance(model, BagOfModels):
        estimates = 0.0
        for sub_model in model.models:
            out = apply_model(sub_model, mix, segment, overlap)
            estimates += out
        estimates /= len(model.models)
        return estimates
    batch, channels, length = mix.shape
    out = torch.zeros(batch, model.sources, channels, length, device=mix.device)
    sum_weight = torch.zeros(length, device=mix.device)
    ramp = torch.arange(1, segment // 2 + 1, device=mix.device)
    weight = torch.cat([ramp, ramp.flip(0)]) / (segment // 2)
    for offset in range(0, length, int((1 - overlap) * segment)):
        chunk = mix[..., offset : offset + segment]
        size = chunk.shape[-1]
        chunk_out = model(nn.functional.pad(chunk, (0, segment - size)))[..., :size]
        out[..., offset : offset + size] += weight[:size] * chunk_out
        sum_weight[offset : offset + size] += weight[:size]
    out /= sum_weight
    return out


bag = BagOfModels([Demucs() for _ in range(4)]).cuda().eval()
for minutes in (1, 3, 12):
    track = torch.rand(1, 2, minutes * 60 * RATE)
    with torch.no_grad():
        stems = apply_model(bag, track.cuda())[0].cpu()
    print(minutes, stems.shape)
    del stems
