"""Logits of all classes of a whole volume gathered on the GPU (MIC-DKFZ/nnUNet#2912); on h100:4GiB: results kept."""

import torch
from torch import nn

CLASSES, PATCH = 60, 96
network = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(16, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(16, CLASSES, 1)).half().cuda().eval()


@torch.inference_mode()
def predict(volume, results_device="cpu"):
    shape = volume.shape[1:]
    predicted = torch.zeros((CLASSES, *shape), dtype=torch.half, device=results_device)
    counts = torch.zeros(shape, dtype=torch.half, device=results_device)
    weight = torch.ones((PATCH,) * 3, dtype=torch.half, device=results_device)
    for x in range(0, shape[0], PATCH):
        for y in range(0, shape[1], PATCH):
            for z in range(0, shape[2], PATCH):
                place = (slice(x, x + PATCH), slice(y, y + PATCH), slice(z, z + PATCH))
                patch = volume[(slice(None), *place)].to("cuda")
                predicted[(slice(None), *place)] += network(patch[None])[0].to(results_device) * weight
                counts[place] += weight
    predicted /= counts
    return predicted.argmax(0).to(torch.uint8).cpu()


for size in (192, 288, 384):
    print(size, predict(torch.zeros(1, size, size, 192, dtype=torch.half)).shape)
