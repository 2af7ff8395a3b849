# open-mmlab/mmdetection#3863; h100:3GiB
"""Trains a one-stage detector on pictures of crowds, with anchors that are assigned by their overlap with the boxes."""

import torch
from torch import nn
import torch.nn.functional as F


def bbox_overlaps(bboxes1, bboxes2):
    area1 = (bboxes1[:, 2] - bboxes1[:, 0]) * (bboxes1[:, 3] - bboxes1[:, 1])
    area2 = (bboxes2[:, 2] - bboxes2[:, 0]) * (bboxes2[:, 3] - bboxes2[:, 1])
    lt = torch.max(bboxes1[:, None, :2], bboxes2[None, :, :2])
    rb = torch.min(bboxes1[:, None, 2:], bboxes2[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    overlap = wh[..., 0] * wh[..., 1]
    union = area1[:, None] + area2[None, :] - overlap
    return overlap / union.clamp(min=1e-6)


class MaxIoUAssigner:
    def __init__(self, pos_iou_thr, neg_iou_thr, gpu_assign_thr=-1):
        self.pos_iou_thr, self.neg_iou_thr, self.gpu_assign_thr = pos_iou_thr, neg_iou_thr, gpu_assign_thr

    def assign(self, bboxes, gt_bboxes):
        device = bboxes.device
        if self.gpu_assign_thr > 0 and len(gt_bboxes) > self.gpu_assign_thr:
            bboxes, gt_bboxes = bboxes.cpu(), gt_bboxes.cpu()
        overlaps = bbox_overlaps(gt_bboxes, bboxes)
        max_overlaps, argmax = overlaps.max(dim=0)
        labels = torch.where(max_overlaps >= self.pos_iou_thr, 1.0, 0.0)
        counted = (max_overlaps >= self.pos_iou_thr) | (max_overlaps < self.neg_iou_thr)
        return labels.to(device), counted.to(device), argmax.to(device)


def conv(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Detector(nn.Module):
    strides = (8, 16, 32, 64)

    def __init__(self, anchors=9):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), conv(32, 64, 2))
        self.levels = nn.ModuleList([conv(64, 64, 2) for _ in self.strides[1:]])
        self.scores, self.deltas = nn.Conv2d(64, anchors, 3, padding=1), nn.Conv2d(64, 4 * anchors, 3, padding=1)

    def forward(self, images):
        maps = [self.stem(images)]
        for level in self.levels:
            maps.append(level(maps[-1]))
        scores = [self.scores(m).permute(0, 2, 3, 1).flatten(1) for m in maps]
        deltas = [self.deltas(m).permute(0, 2, 3, 1).reshape(len(images), -1, 4) for m in maps]
        return torch.cat(scores, 1), torch.cat(deltas, 1)


def grid_anchors(height, width, strides, anchors=9):
    boxes = []
    for stride in strides:
        y, x = torch.meshgrid(torch.arange(height // stride), torch.arange(width // stride), indexing="ij")
        centres = (torch.stack([x, y], -1).reshape(-1, 1, 2) + 0.5) * stride
        sizes = stride * torch.linspace(2, 6, anchors).view(1, anchors, 1)
        boxes.append(torch.cat([centres - sizes, centres + sizes], -1).reshape(-1, 4))
    return torch.cat(boxes)


model = Detector().cuda()
assigner = MaxIoUAssigner(pos_iou_thr=0.5, neg_iou_thr=0.4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
anchors = grid_anchors(640, 768, Detector.strides).cuda()
annotations = [(24, 61), (15, 7), (112, 40), (33, 208), (71, 18), (180, 52), (8, 900), (95, 30)]
for step, counts in enumerate(annotations):
    images = torch.rand(len(counts), 3, 640, 768).cuda()
    scores, deltas = model(images)
    loss = 0
    for i, count in enumerate(counts):
        corner = torch.rand(count, 2) * 600
        gt_bboxes = torch.cat([corner, corner + 8 + 40 * torch.rand(count, 2)], 1).cuda()
        labels, counted, matched = assigner.assign(anchors, gt_bboxes)
        target = gt_bboxes[matched] - anchors
        loss = loss + (F.binary_cross_entropy_with_logits(scores[i], labels, reduction="none") * counted).mean()
        loss = loss + ((deltas[i] - target / 32).abs().sum(-1) * labels).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, counts, loss.item())
