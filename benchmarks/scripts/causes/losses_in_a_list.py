"""Losses of a validation in a list, with their graphs (pytorch/pytorch#4420); on 4GiB: graphs kept."""

import torch
from torch import nn


def net(width=64):
    layers, channels = [], 3
    for _ in range(6):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def validate(model, criterion, losses):
    model.eval()
    images = torch.randn(8, 3, 64, 64).cuda()
    target = torch.zeros(8, dtype=torch.long).cuda()
    loss = criterion(model(images), target)
    losses.append(loss)
    model.train()


def train(model, criterion, optimizer, losses):
    for _ in range(4):
        images = torch.randn(32, 3, 64, 64).cuda()
        target = torch.zeros(32, dtype=torch.long).cuda()
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    model = net().cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _epoch in range(100):
        train(model, criterion, optimizer, losses)
        validate(model, criterion, losses)


main()
