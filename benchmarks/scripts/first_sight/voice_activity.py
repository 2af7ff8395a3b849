# snakers4/silero-vad#683; h100:3GiB
"""Tunes a small voice-activity detector on labelled recordings and validates it after each epoch."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    sampling_rate, chunk = 16_000, 512
    max_train_length_sec: int = 8
    batch_size: int = 32
    learning_rate: float = 5e-4
    num_epochs: int = 1
    noise_loss: float = 0.5


class SileroVadDataset(Dataset):
    def __init__(self, config, seconds, mode="train"):
        self.config, self.seconds, self.mode = config, seconds, mode

    def __len__(self):
        return len(self.seconds)

    def load_speech_sample(self, i):
        samples = self.seconds[i] * self.config.sampling_rate
        wav = torch.sin(torch.arange(samples) * (0.01 + 0.001 * (i % 10)))
        chunks = samples // self.config.chunk
        wav = wav[: chunks * self.config.chunk]
        targets = (torch.arange(chunks) // 40 % 2).float()
        return wav, targets, torch.ones(chunks)

    def __getitem__(self, i):
        wav, gt, mask = self.load_speech_sample(i)
        if self.mode == "train":
            wav, gt, mask = self.crop_length(wav, gt, mask)
        return wav, gt, mask

    def crop_length(self, wav, gt, mask):
        chunks = self.config.max_train_length_sec * self.config.sampling_rate // self.config.chunk
        return wav[: chunks * self.config.chunk], gt[:chunks], mask[:chunks]


def pad_batch(samples):
    return tuple(nn.utils.rnn.pad_sequence(parts, batch_first=True) for parts in zip(*samples))


class VadDecoder(nn.Module):
    def __init__(self, config, filters=256, hop=128, width=128):
        super().__init__()
        self.chunk = config.chunk
        self.basis = nn.Parameter(torch.randn(filters + 2, 1, filters), requires_grad=False)
        self.hop, self.cutoff = hop, filters // 2 + 1
        self.encoder = nn.Sequential(
            nn.Conv1d(self.cutoff, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv1d(64, width, 3, 2, 1), nn.ReLU(),
        )
        self.lstm, self.outside = nn.LSTM(width, width, batch_first=True), nn.Linear(width, 1)

    def spectrum(self, wav):
        padded = nn.functional.pad(wav.unsqueeze(1), (64, 64), mode="reflect")
        real, imaginary = nn.functional.conv1d(padded, self.basis, stride=self.hop).split(self.cutoff, 1)
        return torch.sqrt(real**2 + imaginary**2)

    def forward(self, wav):
        x = self.encoder(self.spectrum(wav))
        x, _ = self.lstm(x.transpose(1, 2))
        return self.outside(x).squeeze(-1)[:, : wav.shape[1] // self.chunk]


def weighted_loss(config, out, targets, masks):
    loss = nn.functional.binary_cross_entropy_with_logits(out, targets, reduction="none")
    weight = torch.where(targets == 1, 1.0, config.noise_loss) * masks
    return (loss * weight).sum() / masks.sum().clamp(min=1)


def train(config, loader, model, optimizer):
    model.train()
    for wavs, targets, masks in loader:
        wavs, targets, masks = wavs.cuda(), targets.cuda(), masks.cuda()
        loss = weighted_loss(config, model(wavs), targets, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def validate(config, loader, model):
    model.eval()
    losses = []
    with torch.no_grad():
        for wavs, targets, masks in loader:
            wavs, targets, masks = wavs.cuda(), targets.cuda(), masks.cuda()
            losses.append(weighted_loss(config, model(wavs), targets, masks).item())
    return sum(losses) / len(losses)


config = Config()
train_set = SileroVadDataset(config, [10 + i * 7 % 50 for i in range(96)])
val_set = SileroVadDataset(config, [12 + i * 5 % 30 for i in range(28)] + [240, 20, 31, 14], mode="val")
model = VadDecoder(config).cuda()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=config.learning_rate)
train_loader = DataLoader(train_set, batch_size=config.batch_size, shuffle=True, collate_fn=pad_batch)
val_loader = DataLoader(val_set, batch_size=config.batch_size, collate_fn=pad_batch)
for epoch in range(config.num_epochs):
    train_loss = train(config, train_loader, model, optimizer)
    print(f"epoch {epoch}: train {train_loss:.3f}, validation {validate(config, val_loader, model):.3f}")
