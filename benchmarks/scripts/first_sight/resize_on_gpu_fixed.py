"""A picture moved to the GPU at full size before it is made smaller (darsa-group/flat-bug#131); on h100:4GiB: resize first."""

import torch
from torch import nn
import torch.nn.functional as F

TILE = 1024
detector = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.SiLU(), nn.Conv2d(64, 8, 1)).cuda().eval()


def load(side):
    """A photograph, as decoded: uint8."""
    return torch.full((3, side, side), 127, dtype=torch.uint8)


@torch.inference_mode()
def detect(photo, scale=0.25, padding=256):
    image = F.interpolate(photo[None].float() / 255, scale_factor=scale, mode="bilinear")
    image = F.pad(image.to("cuda"), (int(padding * scale),) * 4)
    found = []
    for top in range(0, image.shape[-2], TILE):
        for left in range(0, image.shape[-1], TILE):
            tile = image[..., top : top + TILE, left : left + TILE]
            found.append(detector(tile).amax((2, 3)).cpu())
    return torch.cat(found)


for side in (3000, 4000, 11000):
    print(side, detect(load(side)).shape)
