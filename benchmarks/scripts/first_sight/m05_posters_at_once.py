# control; h100:6GiB
"""A diffusion transformer draws posters from latents of 128 x 128, with guidance, in bfloat16."""

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.shift = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 2 * width)

    def forward(self, x, condition):
        first, second = self.shift(condition)[:, None].chunk(2, dim=-1)
        q, k, v = self.qkv(self.norm1(x) + first).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x) + second)))


class DiT(nn.Module):
    def __init__(self, width=1152, depth=12, heads=16, patch=2, places=4096):
        super().__init__()
        self.patches, self.places = nn.Conv2d(4, width, patch, stride=patch), nn.Parameter(torch.zeros(places, width))
        self.time, self.text = nn.Linear(1, width), nn.Linear(768, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.last = nn.ConvTranspose2d(width, 4, patch, stride=patch)

    def forward(self, x, t, text):
        patches = self.patches(x)
        shape, condition = patches.shape, self.time(t[:, None]) + self.text(text)
        x = patches.flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        return self.last(x.transpose(1, 2).reshape(shape))


@torch.inference_mode()
def draw(model, texts, steps=4, guidance=4.0):
    x = torch.randn(len(texts), 4, 128, 128, device="cuda", dtype=torch.bfloat16)
    both = torch.cat([texts, torch.zeros_like(texts)])
    for step in range(steps):
        t = torch.full((2 * len(texts),), 1 - step / steps, device="cuda", dtype=torch.bfloat16)
        with_text, without = model(torch.cat([x, x]), t, both).chunk(2)
        x = x - (without + guidance * (with_text - without)) / steps
    return x.cpu()


with torch.device("meta"):
    model = DiT()
model = model.to(torch.bfloat16).to_empty(device="cuda").eval()
posters = draw(model, torch.randn(64, 768, device="cuda", dtype=torch.bfloat16))
print(posters.shape)
