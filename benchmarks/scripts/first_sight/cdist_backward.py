# pytorch/pytorch#24345; h100:5GiB
"""A student that keeps the distances among a teacher's patches: relational distillation."""

import torch
from torch import nn
import torch.nn.functional as F


class VisionTransformer(nn.Module):
    def __init__(self, width, layers, out=1024):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, out)

    def forward(self, images):
        return self.out(self.blocks(self.patches(images).flatten(2).transpose(1, 2)))


class RelationalLoss(nn.Module):
    def distances(self, patches):
        d = torch.cdist(patches, patches, compute_mode="donot_use_mm_for_euclid_dist")
        return d / d.detach().mean((1, 2), keepdim=True).clamp_min(1e-6)

    def forward(self, student, teacher):
        with torch.no_grad():
            target = self.distances(teacher)
        return F.smooth_l1_loss(self.distances(student), target)


student, teacher = VisionTransformer(256, 4).cuda(), VisionTransformer(768, 6).cuda().eval()
criterion = RelationalLoss()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
for step in range(4):
    images = torch.rand(24, 3, 256, 256, device="cuda")
    with torch.no_grad():
        target = teacher(images)
    loss = criterion(student(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
