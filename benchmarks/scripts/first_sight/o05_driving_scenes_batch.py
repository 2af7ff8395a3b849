# control; h100:8GiB
"""Trains a single-stage detector with a residual backbone and a feature pyramid on scenes of driving."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FeaturePyramidNetwork, sigmoid_focal_loss


class Scenes(Dataset):
    def __init__(self, scenes, classes=8, height=736, width=1280):
        self.scenes, self.classes, self.height, self.width = scenes, classes, height, width

    def __len__(self):
        return self.scenes

    def __getitem__(self, i):
        picture = torch.full((3, self.height, self.width), i % 255, dtype=torch.uint8)
        targets = []
        for stride in (8, 16, 32, 64):
            rows, columns = -(-self.height // stride), -(-self.width // stride)
            targets.append(torch.full((rows * columns,), -1))
        labels = torch.cat(targets)
        labels[i % 50 :: 400] = i % self.classes
        return picture, labels, torch.rand(len(labels), 4)


class Head(nn.Module):
    def __init__(self, width, outputs, convolutions=4):
        super().__init__()
        layers = []
        for _ in range(convolutions):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32, width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, levels):
        return torch.cat([self.layers(level).flatten(2).transpose(1, 2) for level in levels], 1)


class Detector(nn.Module):
    def __init__(self, classes=8, width=256):
        super().__init__()
        layers = {"layer2": "c3", "layer3": "c4", "layer4": "c5"}
        self.backbone = IntermediateLayerGetter(resnet50(), layers)
        self.pyramid = FeaturePyramidNetwork([512, 1024, 2048], width)
        self.further = nn.Conv2d(width, width, 3, 2, 1)
        self.scores, self.boxes = Head(width, classes), Head(width, 4)

    def forward(self, x):
        levels = list(self.pyramid(self.backbone(x)).values())
        levels.append(self.further(levels[-1]))
        return self.scores(levels), self.boxes(levels).exp()


def criterion(scores, boxes, labels, targets):
    positive = labels >= 0
    one_hot = F.one_hot(labels.clamp(min=0), scores.shape[-1]) * positive.unsqueeze(-1)
    count = positive.sum().clamp(min=1)
    classification = sigmoid_focal_loss(scores, one_hot.float()).sum() / count
    regression = ((boxes - targets).abs().sum(-1) * positive).sum() / count
    return classification + regression


def train_epoch(model, loader, optimizer, mean=114.0, std=58.0):
    model.train()
    for step, (pictures, labels, targets) in enumerate(loader):
        pictures = pictures.cuda().float().sub_(mean).div_(std)
        with torch.autocast("cuda", torch.bfloat16):
            scores, boxes = model(pictures)
        loss = criterion(scores.float(), boxes.float(), labels.cuda(), targets.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        print(f"step {step}: {loss.item():.3f}")


model = Detector().cuda()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": rest}], lr=0.01, momentum=0.9)
train_epoch(model, DataLoader(Scenes(32), batch_size=8), optimizer)
