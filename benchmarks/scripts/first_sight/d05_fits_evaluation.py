# control; h100:3GiB
"""Evaluation of a segmentation: no gradients, classes go to the host, and counts are kept on the GPU."""

import torch
from torch import nn
import torch.nn.functional as F

network = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
    nn.Conv2d(64, 128, 3, 2, 1), nn.BatchNorm2d(128), nn.ReLU(inplace=True),
    nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.Conv2d(128, 19, 1),
).cuda().eval()
confusion = torch.zeros(19 * 19, dtype=torch.long, device="cuda")


@torch.inference_mode()
def evaluate(batches):
    kept = []
    for _ in range(batches):
        images = torch.rand(4, 3, 512, 1024, device="cuda")
        truth = torch.zeros(4, 512, 1024, dtype=torch.long, device="cuda")
        logits = F.interpolate(network(images), scale_factor=4, mode="bilinear")
        classes = logits.argmax(1)
        confusion.scatter_add_(0, (truth * 19 + classes).flatten(), torch.ones_like(classes).flatten())
        kept.append(classes.to(torch.uint8).cpu())
    return torch.cat(kept)


print(evaluate(8).shape)
counts = confusion.view(19, 19)
print((counts.diagonal() / (counts.sum(0) + counts.sum(1) - counts.diagonal()).clamp_min(1)).mean().item())
