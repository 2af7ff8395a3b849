"""Overlaps of all anchors with thousands of boxes (open-mmlab/mmdetection#188); on 8GiB: every pair."""

import torch
import torchvision


def bbox_overlaps(a, b):
    lt = torch.max(a[:, None, :2], b[None, :, :2])
    rb = torch.min(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt + 1).clamp(min=0)
    overlap = wh[:, :, 0] * wh[:, :, 1]
    area1 = (a[:, 2] - a[:, 0] + 1) * (a[:, 3] - a[:, 1] + 1)
    area2 = (b[:, 2] - b[:, 0] + 1) * (b[:, 3] - b[:, 1] + 1)
    return overlap / (area1[:, None] + area2 - overlap)


backbone = torchvision.models.resnet50()
trunk = torch.nn.Sequential(*list(backbone.children())[:-2]).cuda()
head = torch.nn.Conv2d(2048, 9 * 4, 1).cuda()
optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], 0.01, momentum=0.9)
anchors = torch.rand(180000, 4).cuda()
for num_boxes in (7, 20, 3, 12, 45, 3100):
    image, boxes = torch.randn(2, 3, 800, 800).cuda(), torch.rand(num_boxes, 4).cuda()
    prediction = head(trunk(image))
    with torch.no_grad():
        best, assigned = bbox_overlaps(boxes, anchors).max(0)
    loss = prediction.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
