# control; h100:6GiB
"""Depth from pairs of pictures: costs of all disparities by products of groups of channels, one pair at a time."""

import torch
from torch import nn
import torch.nn.functional as F


class Features(nn.Sequential):
    def __init__(self, width=96):
        sizes = [(3, 32, 2), (32, 64, 2), (64, width, 1), (width, width, 1)]
        super().__init__(*[nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.BatchNorm2d(o), nn.ReLU()) for i, o, s in sizes])


class StereoNetwork(nn.Module):
    def __init__(self, width=96, groups=24, largest=192):
        super().__init__()
        self.features, self.groups, self.disparities = Features(width), groups, largest // 4
        sizes = [(groups, 32), (32, 32), (32, 32)]
        self.aggregate = nn.Sequential(*[nn.Sequential(nn.Conv3d(i, o, 3, 1, 1), nn.BatchNorm3d(o), nn.ReLU()) for i, o in sizes])
        self.score = nn.Conv3d(32, 1, 3, 1, 1)

    def costs(self, left, right):
        volume = left.new_zeros(len(left), self.groups, self.disparities, *left.shape[2:])
        for d in range(self.disparities):
            product = left[..., d:] * right[..., : right.shape[-1] - d]
            volume[:, :, d, :, d:] = product.unflatten(1, (self.groups, -1)).mean(2)
        return volume

    def forward(self, left, right):
        volume = self.costs(self.features(left), self.features(right))
        probabilities = self.score(self.aggregate(volume)).squeeze(1).softmax(1)
        places = torch.arange(self.disparities, device=left.device, dtype=probabilities.dtype)
        disparity = torch.einsum("bdhw,d->bhw", probabilities, places)
        return F.interpolate(disparity[:, None] * 4, scale_factor=4, mode="bilinear", align_corners=False)


model = StereoNetwork().cuda().half().eval()
errors = []
with torch.inference_mode():
    for pair in range(5):
        left, right, truth = torch.rand(1, 3, 1088, 1920), torch.rand(1, 3, 1088, 1920), torch.rand(1, 1, 1088, 1920) * 192
        disparity = model(left.cuda().half(), right.cuda().half()).float().cpu()
        errors.append((disparity - truth).abs().mean().item())
print(sum(errors) / len(errors))
