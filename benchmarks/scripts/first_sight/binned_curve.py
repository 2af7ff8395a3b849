# Lightning-AI/torchmetrics#1493; h100:3GiB
"""Average precision of a segmentation, binned at 100 thresholds, over the pixels of a batch."""

import torch
from torch import nn


class BinaryAveragePrecision:
    def __init__(self, thresholds=100):
        self.thresholds = torch.linspace(0, 1, thresholds, device="cuda")
        self.confmat = torch.zeros(thresholds, 2, 2, dtype=torch.long, device="cuda")

    def update(self, preds, target):
        preds, target = preds.flatten(), target.flatten()
        self.confmat += self._binary_curve_update(preds, target)

    def _binary_curve_update(self, preds, target):
        """Counts of both labels at or above each threshold, and below it."""
        preds_t = (preds.unsqueeze(-1) >= self.thresholds).long()
        positives = (preds_t * target.unsqueeze(-1)).sum(0)
        negatives = (preds_t * (1 - target).unsqueeze(-1)).sum(0)
        above = torch.stack([negatives, positives], -1)
        total = torch.stack([(1 - target).sum(), target.sum()])
        return torch.stack([total - above, above], -1)

    def compute(self):
        tp, fp, fn = self.confmat[:, 1, 1], self.confmat[:, 0, 1], self.confmat[:, 1, 0]
        precision, recall = tp / (tp + fp).clamp_min(1), tp / (tp + fn).clamp_min(1)
        return -torch.sum(recall.diff() * precision[:-1])


network = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 1, 1)).cuda().eval()
metric = BinaryAveragePrecision()
with torch.inference_mode():
    for size in (256, 512, 512):
        images = torch.rand(8, 3, size, size, device="cuda")
        masks = torch.zeros(8, 1, size, size, dtype=torch.long, device="cuda")
        metric.update(torch.sigmoid(network(images)), masks)
print(float(metric.compute()))
