# meta-pytorch/captum#245; h100:6GiB
"""Attributions of a chest X-ray classifier by integrated gradients, one image at a time."""

import torch
from torch import nn


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(y)))], 1)


class CheXNet(nn.Module):
    def __init__(self, growth=32, findings=14):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block1 = nn.Sequential(*[DenseLayer(64 + growth * i, growth) for i in range(6)])
        self.transition = nn.Sequential(nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 128, 1), nn.AvgPool2d(2))
        self.block2 = nn.Sequential(*[DenseLayer(128 + growth * i, growth) for i in range(12)])
        self.classifier = nn.Linear(512, findings)

    def forward(self, x):
        x = self.block2(self.transition(self.block1(self.stem(x))))
        return self.classifier(x.mean((2, 3)))


class IntegratedGradients:
    def __init__(self, forward_func):
        self.forward_func = forward_func

    def attribute(self, image, baseline, target, n_steps=50):
        alphas = (torch.arange(n_steps, device=image.device) + 0.5) / n_steps
        scaled = baseline + alphas[:, None, None, None] * (image - baseline)
        scaled.requires_grad_()
        output = self.forward_func(scaled)[:, target].sum()
        gradients, = torch.autograd.grad(output, scaled)
        return gradients.mean(0) * (image - baseline)[0]


model = CheXNet().cuda().eval()
explainer = IntegratedGradients(model)
for number in range(4):
    image = torch.rand(1, 3, 224, 224, device="cuda")
    with torch.no_grad():
        scores = torch.sigmoid(model(image))
    heat = explainer.attribute(image, torch.zeros_like(image), target=number, n_steps=100)
    print(number, scores.shape, heat.shape)
