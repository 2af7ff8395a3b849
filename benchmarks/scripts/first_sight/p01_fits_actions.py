# control; h100:4GiB
"""Trains a 3D residual network to tell actions in video clips apart, and evaluates it on three crops of each clip."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.video import r3d_18


class Clips(Dataset):
    def __init__(self, clips, frames=16, size=112, classes=101, crops=1):
        self.clips, self.shape, self.classes, self.crops = clips, (3, frames, size, size), classes, crops

    def __len__(self):
        return self.clips

    def __getitem__(self, i):
        clip = torch.randint(0, 256, (self.crops, *self.shape), dtype=torch.uint8)
        return clip if self.crops > 1 else clip[0], i % self.classes


def normalize(clips):
    mean = torch.tensor([0.432, 0.395, 0.376], device=clips.device).view(3, 1, 1, 1)
    std = torch.tensor([0.228, 0.221, 0.217], device=clips.device).view(3, 1, 1, 1)
    return (clips.float() / 255 - mean) / std


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, count):
        self.total, self.count = self.total + value * count, self.count + count

    @property
    def mean(self):
        return self.total / max(self.count, 1)


def train_epoch(model, loader, optimizer, scheduler, accumulate=2):
    model.train()
    losses = AverageMeter()
    for step, (clips, labels) in enumerate(loader):
        clips, labels = normalize(clips.cuda(non_blocking=True)), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(clips), labels, label_smoothing=0.1)
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
        losses.update(loss.item(), len(clips))
    return losses.mean


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    probabilities, targets = [], []
    for clips, labels in loader:
        crops = clips.shape[1]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(normalize(clips.flatten(0, 1).cuda()))
        probabilities.append(logits.float().softmax(-1).unflatten(0, (-1, crops)).mean(1).cpu())
        targets.append(labels)
    top5 = torch.cat(probabilities).topk(5).indices
    return (top5 == torch.cat(targets)[:, None]).any(1).float().mean().item()


def main(epochs=2):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = r3d_18(num_classes=101)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    training = DataLoader(Clips(96), batch_size=24, shuffle=True, drop_last=True)
    validation = DataLoader(Clips(24, crops=3), batch_size=4)
    for epoch in range(epochs):
        loss = train_epoch(model, training, optimizer, scheduler)
        print(f"epoch {epoch}: loss {loss:.3f}, top-5 {evaluate(model, validation):.3f}")


main()
