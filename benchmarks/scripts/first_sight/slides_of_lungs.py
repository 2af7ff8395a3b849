# MarvinLer/tcga_segmentation#3; h100:4GiB
"""Trains a network on patches of whole-slide images of lungs with weak labels: tumour shares of a slide, not masks."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--alpha", type=float, default=0.1, help="least share of positive patches in a positive slide")
    parser.add_argument("--beta", type=float, default=0.0, help="least share of negative patches in a positive slide")
    parser.add_argument("--max-bag-size", type=int, default=None, help="largest number of patches of a slide per step")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=1)
    return parser.parse_args()


class Slides(Dataset):
    def __init__(self, slides, max_bag_size=None, patch=112):
        self.patches = 260 + (np.arange(slides) * 197) % 840
        self.labels = np.arange(slides) % 2
        self.max_bag_size, self.patch = max_bag_size, patch
        self.random = np.random.default_rng(4)

    def __len__(self):
        return len(self.patches)

    def read_patch(self, slide, number):
        return torch.full((3, self.patch, self.patch), (slide * 31 + number) % 255, dtype=torch.uint8)

    def __getitem__(self, slide):
        numbers = np.arange(self.patches[slide])
        if self.max_bag_size is not None and len(numbers) > self.max_bag_size:
            numbers = self.random.choice(numbers, self.max_bag_size, replace=False)
        bag = torch.stack([self.read_patch(slide, number) for number in numbers])
        return bag, float(self.labels[slide])


class AlphaBetaLoss(nn.Module):
    """The surest patches of a slide, as many as alpha and beta demand, get the slide's label."""

    def __init__(self, alpha, beta):
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, logits, label):
        ordered = logits.sort(descending=True).values
        positives = max(1, int(self.alpha * len(ordered))) if label else 0
        negatives = int(self.beta * len(ordered)) if label else len(ordered)
        loss = 0.0
        if positives:
            loss = loss + nn.functional.softplus(-ordered[:positives]).mean()
        if negatives:
            loss = loss + nn.functional.softplus(ordered[-negatives:]).mean()
        return loss


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    losses = []
    mean = torch.tensor([0.70, 0.54, 0.69], device="cuda").view(1, 3, 1, 1)
    for slide, (bag, label) in enumerate(loader):
        patches = bag.cuda().float().div_(255).sub_(mean)
        logits = model(patches).squeeze(1)
        loss = criterion(logits, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"slide {slide}: {len(bag)} patches, loss {losses[-1]:.3f}")
    return sum(losses) / len(losses)


def main():
    args = parse_args()
    model = resnet18(num_classes=1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(Slides(8, args.max_bag_size), batch_size=None)
    criterion = AlphaBetaLoss(args.alpha, args.beta)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: {train_epoch(model, loader, criterion, optimizer):.3f}")


if __name__ == "__main__":
    main()
