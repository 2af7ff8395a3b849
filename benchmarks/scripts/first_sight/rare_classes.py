# BIT-DA/MetaSAug#4; h100:6GiB
"""Pictures of many classes, most of them rare: features are shifted in the loss along the directions in which those of their class vary."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, inlet, outlet, stride):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(inlet, outlet, 3, stride, 1, bias=False), nn.Conv2d(outlet, outlet, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outlet), nn.BatchNorm2d(outlet)
        self.shortcut = nn.Conv2d(inlet, outlet, 1, stride, bias=False) if stride > 1 or inlet != outlet else nn.Identity()

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class Backbone(nn.Sequential):
    def __init__(self, widths=(64, 128, 256, 512)):
        stages = [Block(i, o, 1 if i == o else 2) for i, o in zip((64, *widths[:-1]), widths)]
        super().__init__(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Covariances:
    """How the features of each class vary, over all batches so far."""

    def __init__(self, classes, width):
        self.covariance = torch.zeros(classes, width, width, device="cuda")
        self.mean, self.count = torch.zeros(classes, width, device="cuda"), torch.zeros(classes, device="cuda")

    @torch.no_grad()
    def update(self, features, labels):
        members = F.one_hot(labels, len(self.count)).to(features.dtype)
        count = members.sum(0)
        mean = members.T @ features / count.clamp(min=1)[:, None]
        centred = members[..., None] * (features[:, None] - mean)
        covariance = torch.bmm(centred.permute(1, 2, 0), centred.permute(1, 0, 2)) / count.clamp(min=1)[:, None, None]
        share = (count / (count + self.count).clamp(min=1))[:, None]
        apart = self.mean - mean
        between = (share * (1 - share))[..., None] * torch.bmm(apart[:, :, None], apart[:, None, :])
        self.covariance = self.covariance * (1 - share)[..., None] + covariance * share[..., None] + between
        self.mean = self.mean * (1 - share) + mean * share
        self.count += count

    def shifts(self, weight, labels):
        """Variance of each logit against that of the own class."""
        apart = weight - weight[labels][:, None]
        return (torch.bmm(apart, self.covariance[labels]) * apart).sum(-1)


def batches(count, size, classes):
    for _ in range(count):
        labels = torch.distributions.Exponential(12.0).sample((size,)).clamp(max=0.999).mul(classes).long()
        yield torch.rand(size, 3, 112, 112).cuda(), labels.cuda()


classes, epochs = 1200, 2
backbone, head = Backbone().cuda(), nn.Linear(512, classes).cuda()
covariances = Covariances(classes, width=512)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for epoch in range(epochs):
    for pictures, labels in batches(4, 64, classes):
        features = backbone(pictures)
        covariances.update(features.detach(), labels)
        logits = head(features) + 0.5 * (epoch + 1) / epochs * covariances.shifts(head.weight, labels)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
