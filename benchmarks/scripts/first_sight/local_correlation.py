# Parskatt/RoMa#5; h100:6GiB
"""Dense matching of two pictures: coarse first, and refined in a second pass at a larger size."""

import torch
from torch import nn
import torch.nn.functional as F


def local_correlation(feature0, feature1, radius, flow):
    """Products of each feature with those in a window around its match in the other picture."""
    b, c, h, w = feature0.shape
    steps = torch.linspace(-radius, radius, 2 * radius + 1, device="cuda")
    window = torch.stack(torch.meshgrid(steps * 2 / h, steps * 2 / w, indexing="ij"), -1).reshape(-1, 2)
    corr = torch.empty(b, (2 * radius + 1) ** 2, h, w, device="cuda")
    for i in range(b):
        places = flow[i].permute(1, 2, 0).reshape(h * w, 1, 2) + window[None]
        near = F.grid_sample(feature1[i : i + 1], places[None], align_corners=False)[0]
        products = near * feature0[i].reshape(c, h * w, 1) / c**0.5
        corr[i] = products.sum(0).T.reshape(-1, h, w)
    return corr


class ConvRefiner(nn.Module):
    def __init__(self, channels, radius):
        super().__init__()
        self.radius = radius
        self.blocks = nn.Sequential(nn.Conv2d(2 * channels + (2 * radius + 1) ** 2 + 2, 256, 1), nn.ReLU(), nn.Conv2d(256, 3, 5, padding=2))

    def forward(self, f0, f1, flow):
        corr = local_correlation(f0, f1, self.radius, flow)
        return self.blocks(torch.cat([f0, f1, corr, flow], 1))


class RegressionMatcher(nn.Module):
    def __init__(self, upsample_res=(1152, 1152)):
        super().__init__()
        self.upsample_res = upsample_res
        self.scale8 = nn.Sequential(nn.Conv2d(3, 128, 8, 8), nn.ReLU(), nn.Conv2d(128, 256, 3, padding=1))
        self.scale16 = nn.Sequential(nn.ReLU(), nn.Conv2d(256, 512, 2, 2))
        self.refine = nn.ModuleDict({"16": ConvRefiner(512, 7), "8": ConvRefiner(256, 3)})

    def decode(self, image0, image1, flow):
        f0, f1 = self.scale8(image0), self.scale8(image1)
        for scale, (a, b) in {"16": (self.scale16(f0), self.scale16(f1)), "8": (f0, f1)}.items():
            flow = F.interpolate(flow, size=a.shape[-2:], mode="bilinear")
            flow = flow + self.refine[scale](a, b, flow)[:, :2]
        return flow

    @torch.inference_mode()
    def match(self, image0, image1):
        flow = torch.zeros(1, 2, 35, 35, device="cuda")
        small = [F.interpolate(x, size=(560, 560), mode="bilinear") for x in (image0, image1)]
        flow = self.decode(*small, flow)
        large = [F.interpolate(x, size=self.upsample_res, mode="bilinear") for x in (image0, image1)]
        return self.decode(*large, flow)


matcher = RegressionMatcher().cuda().eval()
for pair in range(3):
    image0, image1 = torch.rand(2, 1, 3, 1500, 2000, device="cuda")
    print(pair, matcher.match(image0, image1).shape)
