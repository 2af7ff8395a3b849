# timeseriesAI/tsai#5; h100:4GiB
"""Classifies the vibrations of bearings with random convolutional kernels and a linear classifier of their features."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def vibrations(windows, length=768, classes=6):
    labels = torch.arange(windows) % classes
    time = torch.linspace(0, 1, length)
    series = torch.sin(2 * math.pi * (8 + 7 * labels[:, None]) * time).unsqueeze(1)
    return series.add_(0.1 * torch.randn(1, 1, length)), labels


class Rocket(nn.Module):
    """Groups of random kernels that share a length and a dilation; two features of each kernel."""

    def __init__(self, channels, length, kernels=1920, per_group=48, sizes=(7, 9, 11)):
        super().__init__()
        self.groups = nn.ModuleList()
        for group in range(kernels // per_group):
            size = sizes[group % len(sizes)]
            dilation = int(2 ** (group % 6))
            padding = (size - 1) * dilation // 2 if group % 2 else 0
            conv = nn.Conv1d(channels, per_group, size, padding=padding, dilation=dilation)
            nn.init.normal_(conv.weight)
            nn.init.uniform_(conv.bias, -1, 1)
            self.groups.append(conv)
        self.n_features = 2 * kernels
        self.requires_grad_(False)

    def forward(self, x):
        features = []
        for conv in self.groups:
            out = conv(x)
            features += [out.amax(-1), (out > 0).sum(-1) / out.shape[-1]]
        return torch.cat(features, 1)


class Standardize:
    def fit(self, features):
        self.mean, self.std = features.mean(0), features.std(0) + 1e-8
        return self

    def __call__(self, features):
        return (features - self.mean) / self.std


@torch.no_grad()
def create_features(rocket, series, device="cuda"):
    rocket = rocket.to(device)
    return rocket(series.to(device)).cpu()


def train_classifier(features, labels, epochs=2):
    classifier = nn.Linear(features.shape[1], int(labels.max()) + 1).cuda()
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-4)
    for epoch in range(epochs):
        for x, y in DataLoader(TensorDataset(features, labels), batch_size=256, shuffle=True):
            loss = nn.functional.cross_entropy(classifier(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.3f}")
    return classifier


train_series, train_labels = vibrations(28_000)
valid_series, valid_labels = vibrations(2_000)
rocket = Rocket(channels=1, length=train_series.shape[-1])
train_features = create_features(rocket, train_series)
valid_features = create_features(rocket, valid_series)
scale = Standardize().fit(train_features)
classifier = train_classifier(scale(train_features), train_labels)
with torch.no_grad():
    predicted = classifier(scale(valid_features).cuda()).argmax(1).cpu()
print(f"accuracy {(predicted == valid_labels).float().mean().item():.3f}")
