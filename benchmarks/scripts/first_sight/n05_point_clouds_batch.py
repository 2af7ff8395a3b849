# control; h100:5GiB
"""Trains a dynamic graph network that labels the parts of furniture given as point clouds."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CATEGORIES, PARTS = 16, 50


class Furniture(Dataset):
    """Clouds of points on the surface of furniture, turned about the vertical at random."""

    def __init__(self, shapes, points=2048, train=True):
        self.clouds = F.normalize(torch.randn(min(shapes, 256), 4 * points, 3), dim=-1)
        self.parts = torch.randint(0, PARTS, self.clouds.shape[:2])
        self.shapes, self.points, self.train = shapes, points, train

    def __len__(self):
        return self.shapes

    def __getitem__(self, i):
        i = i % len(self.clouds)
        chosen = torch.randperm(self.clouds.shape[1])[: self.points]
        cloud = self.clouds[i, chosen]
        if self.train:
            c, s = torch.rand(()).mul(6.283).cos(), torch.rand(()).mul(6.283).sin()
            cloud = cloud @ torch.stack([c, -s, torch.zeros(()), s, c, torch.zeros(()), torch.zeros(()), torch.zeros(()), torch.ones(())]).view(3, 3)
        return cloud.T, i % CATEGORIES, self.parts[i, chosen]


class EdgeConv(nn.Module):
    def __init__(self, inputs, outputs, k):
        super().__init__()
        self.k = k
        self.layers = nn.Sequential(nn.Conv2d(2 * inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True))

    def neighbours(self, x):
        with torch.no_grad():
            points = x.transpose(1, 2)
            return torch.cat([torch.cdist(cloud, cloud).topk(self.k, largest=False).indices for cloud in points.split(1)])

    def forward(self, x):
        batch, width, points = x.shape
        near = self.neighbours(x).view(batch, 1, -1).expand(-1, width, -1)
        near = x.gather(2, near).view(batch, width, points, self.k)
        centre = x.unsqueeze(-1).expand_as(near)
        return self.layers(torch.cat([near - centre, centre], 1)).amax(-1)


class PartNet(nn.Module):
    def __init__(self, k=20, width=64):
        super().__init__()
        self.edges = nn.ModuleList([EdgeConv(3, width, k), EdgeConv(width, width, k), EdgeConv(width, width, k)])
        self.whole = nn.Sequential(nn.Conv1d(3 * width, 512, 1, bias=False), nn.BatchNorm1d(512), nn.LeakyReLU(0.2))
        self.category = nn.Embedding(CATEGORIES, 64)
        self.head = nn.Sequential(
            nn.Conv1d(512 + 64 + 3 * width, 256, 1, bias=False), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Dropout(0.4), nn.Conv1d(256, PARTS, 1)
        )

    def forward(self, x, categories):
        states = []
        for edge in self.edges:
            x = edge(x)
            states.append(x)
        local = torch.cat(states, 1)
        whole = torch.cat([self.whole(local).amax(-1), self.category(categories)], 1)
        return self.head(torch.cat([local, whole.unsqueeze(-1).expand(-1, -1, local.shape[-1])], 1))


def evaluate(model, loader):
    model.eval()
    right, points = 0, 0
    with torch.inference_mode():
        for clouds, categories, parts in loader:
            best = model(clouds.cuda(), categories.cuda()).argmax(1).cpu()
            right, points = right + (best == parts).sum().item(), points + parts.numel()
    return right / points


def main(epochs=2, batch_size=48):
    train = DataLoader(Furniture(480), batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Furniture(48, train=False), 8)
    model = PartNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        model.train()
        for clouds, categories, parts in train:
            loss = F.cross_entropy(model(clouds.cuda(), categories.cuda()), parts.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        print(epoch, loss.item(), evaluate(model, valid))


main()
