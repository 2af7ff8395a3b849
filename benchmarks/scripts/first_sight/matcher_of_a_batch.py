# facebookresearch/detr#606; h100:4GiB
"""A detector of many small objects; predictions and objects are matched before the loss."""

import torch
from torch import nn


def corners(boxes):
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def generalized_box_iou(a, b):
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = area_a[:, None] + area_b - inter
    lt, rb = torch.min(a[:, None, :2], b[:, :2]), torch.max(a[:, None, 2:], b[:, 2:])
    area = (rb - lt).clamp(min=0).prod(-1)
    return inter / union - (area - union) / area


class HungarianMatcher(nn.Module):
    @torch.no_grad()
    def forward(self, outputs, targets):
        batch, queries = outputs["logits"].shape[:2]
        prob, boxes = outputs["logits"].flatten(0, 1).softmax(-1), outputs["boxes"].flatten(0, 1)
        labels, objects = torch.cat([t["labels"] for t in targets]), torch.cat([t["boxes"] for t in targets])
        cost = 5 * torch.cdist(boxes, objects, p=1) - prob[:, labels] - 2 * generalized_box_iou(corners(boxes), corners(objects))
        cost = cost.view(batch, queries, -1)
        sizes = [len(t["boxes"]) for t in targets]
        return [c[i].argmin(0) for i, c in enumerate(cost.split(sizes, -1))]


class Detector(nn.Module):
    def __init__(self, queries=500, width=128, classes=8):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 32, 8, 8), nn.ReLU(), nn.Conv2d(32, width, 4, 4), nn.ReLU())
        self.queries = nn.Embedding(queries, width)
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.logits, self.boxes = nn.Linear(width, classes), nn.Linear(width, 4)

    def forward(self, pictures):
        features = self.backbone(pictures).flatten(2).transpose(1, 2)
        x = self.attention(self.queries.weight.expand(len(pictures), -1, -1), features, features, need_weights=False)[0]
        return {"logits": self.logits(x), "boxes": self.boxes(x).sigmoid()}


model, matcher = Detector().cuda(), HungarianMatcher()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in (2, 8, 24):
    outputs = model(torch.rand(batch, 3, 384, 384, device="cuda"))
    targets = [{"labels": torch.randint(0, 8, (400,), device="cuda"), "boxes": torch.rand(400, 4, device="cuda")} for _ in range(batch)]
    matched = matcher(outputs, targets)
    loss = torch.stack([(outputs["boxes"][i][m] - t["boxes"]).abs().mean() for i, (m, t) in enumerate(zip(matched, targets))]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(batch, loss.item())
