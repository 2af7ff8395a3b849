"""Masks of all instances at full size turned to float32 for their IoU (roboflow/rf-detr#1463); on h100:6GiB: expansion by a cast."""

import torch
from torch import nn
import torch.nn.functional as F

backbone = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).cuda().eval()
mask_head = nn.Conv2d(64, 400, 1).cuda().eval()


@torch.no_grad()
def predict(image):
    """Masks of 400 instances, resized a few at a time to the image's own size."""
    logits = mask_head(backbone(image))[0]
    masks = torch.empty(len(logits), *image.shape[-2:], dtype=torch.bool, device="cuda")
    for first in range(0, len(logits), 20):
        part = F.interpolate(logits[None, first : first + 20], size=image.shape[-2:], mode="bilinear")
        masks[first : first + 20] = part[0] > 0
    return masks


def mask_iou(predicted, truth):
    p = predicted.view(len(predicted), -1).float()
    t = truth.view(len(truth), -1).float()
    intersection = p @ t.T
    union = p.sum(1)[:, None] + t.sum(1)[None] - intersection
    return intersection / union


results = []
for height, width in [(480, 640), (600, 800), (720, 1280), (1536, 2048), (1536, 2048)]:
    image = torch.rand(1, 3, height, width, device="cuda")
    truth = torch.zeros(30, height, width, dtype=torch.bool, device="cuda")
    results.append(mask_iou(predict(image), truth).cpu())
print(len(results))
