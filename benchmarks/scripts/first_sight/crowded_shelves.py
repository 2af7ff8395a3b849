# ultralytics/ultralytics#755; h100:3GiB
"""Trains an anchor-free detector of products on shelves, with a task-aligned assignment of anchors to boxes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shelves(Dataset):
    def __init__(self, pictures, classes=80, size=640):
        self.pictures, self.classes, self.size = pictures, classes, size

    def __len__(self):
        return self.pictures

    def __getitem__(self, i):
        count = 230 if i % 16 == 11 else 6 + i % 24
        corner, extent = torch.rand(count, 2) * 0.8 * self.size, 8 + torch.rand(count, 2) * 0.2 * self.size
        boxes = torch.cat([corner, corner + extent], 1)
        return torch.rand(3, self.size, self.size), torch.randint(self.classes, (count, 1)), boxes


def collate(samples):
    longest = max(len(boxes) for _, _, boxes in samples)
    labels, boxes = torch.zeros(len(samples), longest, 1, dtype=torch.long), torch.zeros(len(samples), longest, 4)
    for i, (_, label, box) in enumerate(samples):
        labels[i, : len(label)], boxes[i, : len(box)] = label, box
    return torch.stack([picture for picture, _, _ in samples]), labels, boxes


class Detector(nn.Module):
    def __init__(self, classes=80, widths=(24, 48, 96, 160)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), nn.SiLU())
        stages, heads = [], []
        for before, after in zip(widths, widths[1:]):
            stages.append(nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.SiLU()))
            heads.append(nn.Conv2d(after, classes + 4, 1))
        self.stages, self.heads, self.classes = nn.ModuleList(stages), nn.ModuleList(heads), classes

    def forward(self, x):
        x, out, points = self.stem(x), [], []
        for level, (stage, head) in enumerate(zip(self.stages, self.heads)):
            x = stage(x)
            stride = 8 * 2**level
            axis = (torch.arange(x.shape[-1], device=x.device) + 0.5) * stride
            points.append(torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).view(-1, 2))
            out.append(head(x).flatten(2).transpose(1, 2))
        out, points = torch.cat(out, 1), torch.cat(points)
        sides = F.softplus(out[..., self.classes :]) * 8
        return out[..., : self.classes], torch.cat([points - sides[..., :2], points + sides[..., 2:]], -1), points


def pairwise_iou(gt, pd):
    overlap = (torch.minimum(gt[..., 2:], pd[..., 2:]) - torch.maximum(gt[..., :2], pd[..., :2])).clamp_(0).prod(-1)
    area_gt, area_pd = ((b[..., 2:] - b[..., :2]).prod(-1) for b in (gt, pd))
    return overlap / (area_gt + area_pd - overlap + 1e-7)


class TaskAlignedAssigner:
    def __init__(self, topk=13, alpha=0.5, beta=6.0):
        self.topk, self.alpha, self.beta = topk, alpha, beta

    @torch.no_grad()
    def __call__(self, scores, boxes, points, gt_labels, gt_boxes):
        in_gts = self.select_candidates_in_gts(points, gt_boxes)
        index = gt_labels.expand(-1, -1, scores.shape[1])
        overlaps = pairwise_iou(gt_boxes.unsqueeze(2), boxes.unsqueeze(1))
        align = scores.transpose(1, 2).gather(1, index) ** self.alpha * overlaps**self.beta
        in_topk = self.select_topk_candidates(align * in_gts)
        positive = in_topk * in_gts * (gt_boxes.sum(-1, keepdim=True) > 0)
        target = (positive * overlaps).argmax(1)
        target_boxes = gt_boxes.gather(1, target.unsqueeze(-1).expand(-1, -1, 4))
        return positive.amax(1) > 0, gt_labels.squeeze(-1).gather(1, target), target_boxes

    def select_candidates_in_gts(self, points, gt_boxes):
        lt, rb = gt_boxes.unsqueeze(2).chunk(2, -1)
        return torch.cat([points - lt, rb - points], -1).amin(-1) > 1e-9

    def select_topk_candidates(self, metrics):
        indices = metrics.topk(self.topk, dim=-1).indices
        in_topk = F.one_hot(indices, metrics.shape[-1]).sum(-2)
        return torch.where(in_topk > 1, 0, in_topk)


model, assigner = Detector().cuda(), TaskAlignedAssigner()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
for step, (pictures, labels, gt_boxes) in enumerate(DataLoader(Shelves(32), batch_size=16, collate_fn=collate)):
    pictures, labels, gt_boxes = pictures.cuda(), labels.cuda(), gt_boxes.cuda()
    scores, boxes, points = model(pictures)
    foreground, target_labels, target_boxes = assigner(scores.sigmoid(), boxes, points, labels, gt_boxes)
    target_scores = F.one_hot(target_labels, model.classes) * foreground.unsqueeze(-1)
    loss = F.binary_cross_entropy_with_logits(scores, target_scores.float())
    loss = loss + ((1 - pairwise_iou(target_boxes, boxes)) * foreground).sum() / foreground.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.3f}")
