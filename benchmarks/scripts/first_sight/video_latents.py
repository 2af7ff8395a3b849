# huggingface/finetrainers#47; h100:6GiB
"""Videos are encoded to latents before a diffusion model is trained on them."""

from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Arguments:
    batch_size: int = 8
    frames: int = 9
    height: int = 320
    width: int = 480
    enable_slicing: bool = False
    enable_tiling: bool = False


class Videos(Dataset):
    def __init__(self, args, count):
        self.args, self.count = args, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3, self.args.frames, self.args.height, self.args.width) * 2 - 1


class ResnetBlock3D(nn.Module):
    def __init__(self, inlet, outlet):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inlet), nn.GroupNorm(32, outlet)
        self.conv1, self.conv2 = nn.Conv3d(inlet, outlet, 3, padding=1), nn.Conv3d(outlet, outlet, 3, padding=1)
        self.shortcut = nn.Conv3d(inlet, outlet, 1) if inlet != outlet else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Encoder3D(nn.Module):
    def __init__(self, widths=(96, 192, 384, 384), channels=16):
        super().__init__()
        self.inlet = nn.Conv3d(3, widths[0], 3, padding=1)
        self.stages, self.downs = nn.ModuleList(), nn.ModuleList()
        for inlet, outlet in zip((widths[0],) + widths, widths):
            self.stages.append(nn.Sequential(ResnetBlock3D(inlet, outlet), ResnetBlock3D(outlet, outlet)))
            self.downs.append(nn.Conv3d(outlet, outlet, 3, (1, 2, 2), 1))
        self.out = nn.Conv3d(widths[-1], 2 * channels, 3, padding=1)

    def forward(self, x):
        x = self.inlet(x)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number < 3:
                x = self.downs[number](x)
        return self.out(F.silu(x))


class VideoVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.use_slicing, self.use_tiling, self.tile = Encoder3D(), False, False, 160

    def _encode(self, x):
        if not self.use_tiling:
            return self.encoder(x)
        rows = [torch.cat([self.encoder(tile) for tile in row.split(self.tile, 4)], 4) for row in x.split(self.tile, 3)]
        return torch.cat(rows, 3)

    def encode(self, x):
        parts = x.split(1) if self.use_slicing else [x]
        mean, logvar = torch.cat([self._encode(part) for part in parts]).chunk(2, 1)
        return mean + torch.randn_like(mean) * (0.5 * logvar.clamp(-30, 20)).exp()


@torch.no_grad()
def prepare(args):
    vae = VideoVAE().to("cuda", torch.bfloat16).eval()
    vae.use_slicing, vae.use_tiling = args.enable_slicing, args.enable_tiling
    latents = []
    for videos in DataLoader(Videos(args, 24), batch_size=args.batch_size):
        latents.append(vae.encode(videos.to("cuda", torch.bfloat16)).cpu())
    return torch.cat(latents)


print(prepare(Arguments()).shape)
