# jeanne-wang/svd_keyframe_interpolation#4; h100:4GiB
"""Makes the frames between two photographs with a video diffusion model that runs from both ends."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(16, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(16, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.second(self.first(x))


class TemporalAttention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        frames, width, height, length = x.shape
        tokens = x.flatten(2).permute(2, 0, 1)
        q, k, v = self.qkv(tokens).view(-1, frames, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(out).permute(1, 2, 0).view_as(x)


class VideoUNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.inputs = nn.Conv2d(8, width, 3, padding=1)
        self.down, self.middle, self.up = Block(width, 2 * width), Block(2 * width, 2 * width), Block(3 * width, width)
        self.time, self.attention = nn.Linear(1, width), TemporalAttention(2 * width)
        self.output = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latents, condition, t):
        x = self.inputs(torch.cat([latents, condition.expand_as(latents)], 1))
        x = x + self.time(t.to(x.dtype).view(1, 1)).view(1, -1, 1, 1)
        h = self.middle(self.attention(self.down(F.avg_pool2d(x, 2))))
        return self.output(self.up(torch.cat([F.interpolate(h, scale_factor=2.0), x], 1)))


class Autoencoder(nn.Module):
    scaling = 0.18215

    def __init__(self, widths=(512, 512, 256, 128)):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 64, 4, stride=4), nn.SiLU(), nn.Conv2d(64, 4, 2, stride=2))
        self.inputs = nn.Conv2d(4, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(Block(widths[max(i - 1, 0)], width) for i, width in enumerate(widths))
        self.output = nn.Sequential(nn.GroupNorm(16, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))

    def encode(self, pictures):
        return self.encoder(pictures) * self.scaling

    def decode(self, latents):
        x = self.inputs(latents / self.scaling)
        for i, block in enumerate(self.blocks):
            x = block(F.interpolate(x, scale_factor=2.0) if i else x)
        return self.output(x)


class FrameInterpolationPipeline:
    def __init__(self, unet, vae):
        self.unet, self.vae = unet, vae

    def denoise(self, latents, first, last, t):
        forwards = self.unet(latents, first, t)
        backwards = self.unet(latents.flip(0), last, t).flip(0)
        weights = torch.linspace(1, 0, len(latents), device=latents.device, dtype=latents.dtype).view(-1, 1, 1, 1)
        return weights * forwards + (1 - weights) * backwards

    def decode_latents(self, latents, decode_chunk_size):
        frames = [self.vae.decode(part) for part in latents.split(decode_chunk_size)]
        return (torch.cat(frames).float() / 2 + 0.5).clamp(0, 1).cpu()

    @torch.no_grad()
    def __call__(self, image1, image2, num_frames=25, num_inference_steps=12, decode_chunk_size=None):
        decode_chunk_size = decode_chunk_size or num_frames
        first, last = (self.vae.encode(image.half().cuda()) for image in (image1, image2))
        latents = torch.randn(num_frames, *first.shape[1:], device="cuda", dtype=torch.half)
        sigmas = torch.linspace(1, 0, num_inference_steps + 1).cuda()
        for sigma, following in zip(sigmas, sigmas[1:]):
            latents = latents + (following - sigma).half() * self.denoise(latents, first, last, sigma)
        return self.decode_latents(latents, decode_chunk_size)


def main():
    pipe = FrameInterpolationPipeline(VideoUNet().half().cuda().eval(), Autoencoder().half().cuda().eval())
    photographs = torch.rand(2, 1, 3, 320, 576) * 2 - 1
    frames = pipe(image1=photographs[0], image2=photographs[1])
    print(frames.shape, frames.mean().item())


main()
