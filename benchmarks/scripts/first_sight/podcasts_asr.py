# k2-fsa/icefall#119; h100:3GiB
"""Trains a speech recogniser with CTC on cuts of podcasts, in batches of a limited duration."""

import random
import torch
from torch import nn
import torch.nn.functional as F


class Cut:
    def __init__(self, number, duration):
        self.number, self.duration = number, duration

    def features(self):
        return torch.randn(int(100 * self.duration), 80)

    def tokens(self):
        return torch.randint(1, 500, (int(3 * self.duration),))


class SimpleCutSampler:
    """Batches of cuts in a random order whose durations add up to no more than max_duration."""

    def __init__(self, cuts, max_duration, seed=0):
        self.cuts, self.max_duration = list(cuts), max_duration
        random.Random(seed).shuffle(self.cuts)

    def __iter__(self):
        batch, total = [], 0
        for cut in self.cuts:
            if batch and total + cut.duration > self.max_duration:
                yield batch
                batch, total = [], 0
            batch.append(cut)
            total += cut.duration
        yield batch


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.qkv, self.out = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(mask[:, None, None], -1e4)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Encoder(nn.Module):
    def __init__(self, width=256, heads=4, layers=6, tokens=500):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(80, width, 3, 2, 1), nn.ReLU(), nn.Conv1d(width, width, 3, 2, 1), nn.ReLU())
        self.layers, self.head = nn.ModuleList([Layer(width, heads) for _ in range(layers)]), nn.Linear(width, tokens)

    def forward(self, features, lengths):
        x = self.subsample(features.transpose(1, 2)).transpose(1, 2)
        lengths = lengths // 4
        mask = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x).log_softmax(-1), lengths


def collate(cuts):
    features = [cut.features() for cut in cuts]
    tokens = [cut.tokens() for cut in cuts]
    lengths = torch.tensor([len(f) for f in features])
    padded = nn.utils.rnn.pad_sequence(features, batch_first=True)
    return padded, lengths, nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor([len(t) for t in tokens])


rng = random.Random(7)
cuts = [Cut(i, rng.uniform(3, 14)) for i in range(110)] + [Cut(110 + i, d) for i, d in enumerate((19.5, 52.0, 17.0))]
model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, batch in enumerate(SimpleCutSampler(cuts, max_duration=120)):
    features, lengths, tokens, token_lengths = collate(batch)
    log_probs, frames = model(features.cuda(), lengths.cuda())
    loss = F.ctc_loss(log_probs.transpose(0, 1), tokens.cuda(), frames, token_lengths.cuda(), zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, len(batch), tuple(features.shape), loss.item())
