# control; h100:4GiB
"""Trains a network that hears wake words in seconds of sound, and keeps the weights that did best in validation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = ["silence", "other", "lumi", "hey lumi", "stop", "louder", "quieter", "again", "help", "off"]


class Sounds(Dataset):
    def __init__(self, sounds, rate=16000):
        self.waves = torch.randn(200, rate) * 0.1
        self.sounds = sounds

    def __len__(self):
        return self.sounds

    def __getitem__(self, i):
        return self.waves[i % len(self.waves)], i % len(WORDS)


class LogMel(nn.Module):
    def __init__(self, rate=16000, window=400, hop=160, mels=64):
        super().__init__()
        self.window_size, self.hop = 512, hop
        self.register_buffer("window", F.pad(torch.hann_window(window), (56, 56)))
        edges = 700 * (10 ** (torch.linspace(0.02, 1.0, mels + 2) * 1.09) - 1)
        bins = torch.linspace(0, rate / 2, 257)[:, None]
        rising, falling = (bins - edges[:-2]) / edges.diff()[:-1], (edges[2:] - bins) / edges.diff()[1:]
        self.register_buffer("filters", torch.minimum(rising, falling).clamp(min=0))

    def forward(self, waves):
        frames = F.pad(waves, (256, 256)).unfold(-1, self.window_size, self.hop) * self.window
        return (torch.fft.rfft(frames).abs().square() @ self.filters + 1e-6).log().transpose(1, 2)


class Mask(nn.Module):
    """Hides bands of frequencies and of time."""

    def __init__(self, frequencies=12, times=20):
        super().__init__()
        self.frequencies, self.times = frequencies, times

    def forward(self, spectra):
        if self.training:
            f, t = (torch.randint(0, n - w, ()).item() for n, w in zip(spectra.shape[1:], (self.frequencies, self.times)))
            spectra = spectra.clone()
            spectra[:, f : f + self.frequencies], spectra[:, :, t : t + self.times] = 0, 0
        return spectra


def block(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 5, stride, 2, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class WakeWordNet(nn.Module):
    def __init__(self, words, width=96):
        super().__init__()
        self.spectra, self.mask = LogMel(), Mask()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*[block(width * (1 + (i > 2)), width * (1 + (i > 1)), 2 if i in (0, 2) else 1) for i in range(6)])
        self.head = nn.Linear(2 * width, words)

    def forward(self, waves):
        x = self.mask(self.spectra(waves))
        return self.head(self.blocks(self.stem(x[:, None])).mean((2, 3)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = 0
    for waves, labels in loader:
        right += (model(waves.cuda()).argmax(1).cpu() == labels).sum().item()
    return right / len(loader.dataset)


def main(epochs=2, batch_size=192):
    model = WakeWordNet(len(WORDS)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    best, weights = -1.0, None
    train, valid = DataLoader(Sounds(2304), batch_size, shuffle=True), DataLoader(Sounds(960), 2 * batch_size)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for waves, labels in train:
            loss = F.cross_entropy(model(waves.cuda()), labels.cuda(), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        accuracy = validate(model, valid)
        if accuracy > best:
            best, weights = accuracy, {name: value.cpu() for name, value in model.state_dict().items()}
        print(epoch, total / len(train), accuracy)
    model.load_state_dict(weights)


main()
