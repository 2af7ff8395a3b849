"""Predictions of all windows of a volume on the GPU (Project-MONAI/MONAI#854); on 8GiB: results kept."""

import torch
from torch import nn


class HighRes(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.first = nn.Conv3d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv3d(c, c, 3, padding=1) for _ in range(4))
        self.last = nn.Conv3d(c, 8, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(torch.relu(x))
        return self.last(x)


def sliding_window_inference(volume, roi, batch, predictor):
    windows = [
        (a, b, c)
        for a in range(0, volume.shape[2] - roi + 1, roi // 2)
        for b in range(0, volume.shape[3] - roi + 1, roi // 2)
        for c in range(0, volume.shape[4] - roi + 1, roi // 2)
    ]
    rois = []
    for first in range(0, len(windows), batch):
        stack = [volume[:, :, a : a + roi, b : b + roi, c : c + roi] for a, b, c in windows[first : first + batch]]
        rois.append(predictor(torch.cat(stack)))
    output = torch.zeros(1, rois[0].shape[1], *volume.shape[2:], device=volume.device)
    for (a, b, c), one in zip(windows, torch.cat(rois), strict=True):
        output[0, :, a : a + roi, b : b + roi, c : c + roi] += one
    return output


net = HighRes().cuda().eval()
with torch.no_grad():
    for _case in range(2):
        sliding_window_inference(torch.randn(1, 1, 256, 384, 384).cuda(), 64, 4, net)
