# gpleiss/efficient_densenet_pytorch#66; h100:5GiB
"""A DenseNet: each layer reads the outputs of all layers before it."""

import torch
from torch import nn
import torch.nn.functional as F


class _DenseLayer(nn.Module):
    def __init__(self, channels, growth_rate, bn_size=4):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, bn_size * growth_rate, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(bn_size * growth_rate), nn.Conv2d(bn_size * growth_rate, growth_rate, 3, padding=1, bias=False)

    def bottleneck(self, *features):
        return self.conv1(F.relu(self.norm1(torch.cat(features, 1))))

    def forward(self, *features):
        return self.conv2(F.relu(self.norm2(self.bottleneck(*features))))


class _DenseBlock(nn.Module):
    def __init__(self, channels, growth_rate, layers):
        super().__init__()
        self.layers = nn.ModuleList(_DenseLayer(channels + growth_rate * i, growth_rate) for i in range(layers))

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(*features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self, growth_rate=12, block=(16, 16, 16), classes=10):
        super().__init__()
        channels, parts = 2 * growth_rate, [nn.Conv2d(3, 2 * growth_rate, 3, padding=1, bias=False)]
        for i, layers in enumerate(block):
            parts.append(_DenseBlock(channels, growth_rate, layers))
            channels += layers * growth_rate
            if i + 1 < len(block):
                parts.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)))
                channels //= 2
        self.features, self.classifier = nn.Sequential(*parts), nn.Linear(channels, classes)

    def forward(self, images):
        return self.classifier(F.relu(self.features(images)).mean((2, 3)))


model = DenseNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for step in range(3):
    images = torch.rand(256, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
